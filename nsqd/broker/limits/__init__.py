"""What a topic may hold, and what becomes of the rest."""
