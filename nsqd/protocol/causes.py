"""How errors are told to strangers: in the system's words as Go spells them, and without paths."""


def cause_of(error: Exception) -> str:
    """Return the cause in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error)
