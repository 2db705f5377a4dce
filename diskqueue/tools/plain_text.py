"""Text of strangers for the eyes of people: one way to show it, in logs, tables and /stats.

Bodies, names of hosts and commands may hold anything. Here they can neither begin a line or a
column, nor drive a terminal, nor turn the direction of writing: what could is shown as Python
writes it in a string.
"""

# Controls, other ends of lines, marks that turn the direction of writing or have no width, and half
# characters, which no output can encode.
_CODE_POINTS = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x61C,
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xD800, 0xE000),
    0xFEFF,
)
_ESCAPES = {code_point: ascii(chr(code_point))[1:-1] for code_point in _CODE_POINTS}


def escape_text(text: str) -> str:
    """Return the text as one line that is safe to show."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def escape_bytes(data: bytes) -> str:
    """Return bytes as one line that is safe to show; those that are no UTF-8 as `\\xff`."""
    return escape_text(data.decode("utf-8", "backslashreplace"))
