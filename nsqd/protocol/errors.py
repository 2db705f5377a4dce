"""The errors of clients, as nsqd spells them: codes, the exception, quoting.

Texts match nsqd byte for byte because clients compare them. Bytes that came from the client go back
unchanged, even if they are no UTF-8: as text they have the ``surrogateescape`` error handler.
"""

import re
from enum import StrEnum


class ErrorCode(StrEnum):
    """The first word of an error frame."""

    E_BAD_PROTOCOL = "E_BAD_PROTOCOL"
    E_INVALID = "E_INVALID"
    E_BAD_BODY = "E_BAD_BODY"
    E_BAD_TOPIC = "E_BAD_TOPIC"
    E_BAD_CHANNEL = "E_BAD_CHANNEL"
    E_BAD_MESSAGE = "E_BAD_MESSAGE"
    E_PUB_FAILED = "E_PUB_FAILED"
    E_MPUB_FAILED = "E_MPUB_FAILED"
    E_DPUB_FAILED = "E_DPUB_FAILED"
    E_SUB_FAILED = "E_SUB_FAILED"
    E_FIN_FAILED = "E_FIN_FAILED"
    E_REQ_FAILED = "E_REQ_FAILED"
    E_TOUCH_FAILED = "E_TOUCH_FAILED"
    E_IDENTIFY_FAILED = "E_IDENTIFY_FAILED"
    E_AUTH_FAILED = "E_AUTH_FAILED"
    E_AUTH_ERROR = "E_AUTH_ERROR"
    E_AUTH_DISABLED = "E_AUTH_DISABLED"
    E_AUTH_FIRST = "E_AUTH_FIRST"
    E_UNAUTHORIZED = "E_UNAUTHORIZED"


class FatalClientError(Exception):
    """The client is answered with an error frame, then its connection is closed."""

    def __init__(self, code: ErrorCode, text: str | bytes = "") -> None:
        """Make an error of this code and description; without one the code stands alone."""
        self.code = code
        self.text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
        super().__init__(f"{code.value} {self.text}" if self.text else code.value)

    @property
    def is_about_size(self) -> bool:
        """Whether the client sent more than is allowed: NSQ's text says so, and has no code."""
        return " too big " in self.text or " too large" in self.text

    @property
    def frame_data(self) -> bytes:
        """The data of the error frame."""
        return str(self).encode("utf-8", "surrogateescape")


_GO_ESCAPES = {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    ord("\a"): "\\a",
    ord("\b"): "\\b",
    ord("\f"): "\\f",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord("\v"): "\\v",
    0x7F: "\\x7f",
    **{control: f"\\x{control:02x}" for control in range(0x20) if not 0x07 <= control <= 0x0D},
}
_PLAIN = re.compile(r"[ !#-\[\]-~]*")


def go_quote(raw: bytes | str) -> str:
    """Quote a name the way Go's ``%q`` does, as nsqd's error texts show names.

    Args:
        raw: as the client sent it; a str holds bytes that are no UTF-8 as surrogate escapes.
    """
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    if _PLAIN.fullmatch(text) is not None:
        return f'"{text}"'
    return f'"{"".join(map(_escape, text))}"'


def _escape(character: str) -> str:
    code_point = ord(character)
    escaped = _GO_ESCAPES.get(code_point)
    if escaped is not None:
        return escaped
    # Go and Python agree that all is printable but controls, separators and the unassigned.
    if character.isprintable():
        return character
    if 0xDC80 <= code_point <= 0xDCFF:
        return f"\\x{code_point - 0xDC00:02x}"
    if 0xD800 <= code_point <= 0xDFFF:
        return "\\ufffd"
    return f"\\u{code_point:04x}" if code_point < 0x10000 else f"\\U{code_point:08x}"
