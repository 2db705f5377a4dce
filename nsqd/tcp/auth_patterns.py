"""Pattern: a regular expression of an auth server's answer, compiled and matched by RE2.

Auth servers are written against Go's regexp. RE2 has its syntax, and like it never backtracks:
matching takes time proportional to the name. Python's `re` differs in syntax and backtracks:
`^([a-z]+\\.?)+$` and one well-chosen topic name would hold up the event loop for hours.

Patterns match anywhere in a topic's or channel's name, unless they have anchors of their own.
"""

import re
from typing import Final

try:
    import re2
except ImportError:  # Platforms without a wheel, as musl; only a daemon with auth needs it.
    re2 = None

MAX_INSTRUCTIONS = 10_000
MAX_PATTERN_CHARACTERS = 20_000

# RE2 gives two thirds of it to the program, of which it takes 64 bytes for an instruction of 16:
# a pattern beyond MAX_INSTRUCTIONS fails early. The rest bounds the automaton's cache of states.
_MAX_MEMORY_BYTES: Final = MAX_INSTRUCTIONS * 64 * 3 // 2 + 4096

# The escapes of a pattern, with a quotation as one of them.
_ESCAPE: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class PatternError(ValueError):
    """The text is no regular expression in RE2's syntax, or too big a one."""


class Re2MissingError(Exception):
    """The package google-re2 is not installed, or has no build for this platform."""


def require_re2() -> None:
    """Check that patterns can be compiled here.

    Raises:
        Re2MissingError: they cannot.
    """
    if re2 is None:
        raise Re2MissingError(
            "the package google-re2, which matches the patterns of auth servers, is not installed"
        )


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        """Compile the text.

        Raises:
            PatternError: it is no pattern.
        """
        require_re2()
        if len(text) > MAX_PATTERN_CHARACTERS:
            raise PatternError("expression too large")
        if any(escape[0] == "\\C" for escape in _ESCAPE.finditer(text)):
            # RE2 matches a byte with it, which Go's regexp does not offer.
            raise PatternError("invalid escape sequence: \\C")
        options = re2.Options()
        options.max_mem = _MAX_MEMORY_BYTES
        options.never_capture = True
        options.log_errors = False
        self.text = text
        try:
            # As Go's JSON decoder has it, half a surrogate pair is the replacement character. The
            # package remembers recent patterns, so connections with the same rights share them.
            self._compiled = re2.compile(_SURROGATE.sub("\ufffd", text), options)
        except re2.error as error:
            raise PatternError(_describe(error)) from None
        if self._compiled.programsize > MAX_INSTRUCTIONS:
            raise PatternError("expression too large")

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    @property
    def instruction_count(self) -> int:
        """The size of the compiled pattern; an instruction takes about 100 bytes."""
        count: int = self._compiled.programsize
        return count

    def matches(self, name: str) -> bool:
        """Say whether the pattern occurs in the name."""
        return self._compiled.search(name) is not None


def _describe(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
