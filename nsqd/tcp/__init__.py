"""The V2 door: one client, its handlers, its stream and its replies."""
