"""Values of options as Spark passes them: text, which is parsed or refused with a reason."""

import difflib
import enum
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

_E = TypeVar("_E", bound=enum.Enum)

# A minus is understood, but a command line takes `--since -15m` for two options.
_RELATIVE = re.compile(r"-?(\d{1,9})(ms|[smhdw])")
_DURATION = re.compile(r"(\d{1,9})(ms|[smhdw])?")
_UNIT_NS = {
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
# About the year 5138: a number that would be later than that was meant in a smaller unit.
_MAX_TIME_NS = 10**20
_SIZE = re.compile(r"(\d{1,18})\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}


def refuse_unknown(
    given: Mapping[str, str], known: tuple[str, ...], ignored: tuple[str, ...]
) -> None:
    """Refuse a misspelt option: ignoring it would give wrong results.

    Raises:
        ValueError: an option is neither known nor ignored.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        if name in names or name in ignored:
            continue
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {names[close[0]]!r}?" if close else f": {', '.join(known)}"
        raise ValueError(f"format nsq has no option {name!r}{hint}")


def parse_bool(name: str, text: str) -> bool:
    """Parse true or false.

    Raises:
        ValueError: the text is neither.
    """
    if text.lower() not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {text!r}")
    return text.lower() == "true"


def parse_enum(name: str, kind: type[_E], text: str) -> _E:
    """Parse one of a few possible values.

    Raises:
        ValueError: the text is none of them.
    """
    try:
        return kind(text)
    except ValueError:
        values = ", ".join(str(member.value) for member in kind)
        raise ValueError(f"option {name} is one of {values}, not {text!r}") from None


def parse_size(name: str, text: str) -> int:
    """Parse a number of bytes such as 67108864, 64m or 64MiB.

    Raises:
        ValueError: the text is no size, or 0.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"option {name} is a size such as 64m, not {text!r}")
    return int(match[1]) << _SIZE_SHIFTS[match[2].lower()]


def parse_count(name: str, text: str, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
    """Parse a whole number between two bounds.

    Raises:
        ValueError: the text is no number, or outside the bounds.
    """
    digits = text.strip()
    if not re.fullmatch("[0-9]{1,19}", digits) or not minimum <= int(digits) <= maximum:
        raise ValueError(f"option {name} is a number from {minimum} to {maximum}, not {text!r}")
    return int(digits)


def parse_duration_s(name: str, text: str) -> float:
    """Parse a duration such as 500ms, 1s or 10m; 0 is one, too.

    Raises:
        ValueError: the text is no duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"option {name} is a duration such as 500ms or 10m, not {text!r}")
    return int(match[1]) * _UNIT_NS[match[2] or "s"] / 1e9


def parse_time_ns(name: str, text: str) -> int:
    """Parse a moment: ISO 8601 (UTC unless it says otherwise), 15m (ago), or a number.

    A number counts seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by
    size: taken for nanoseconds, all but the last would silently select everything.

    Raises:
        ValueError: the text is none of these.
    """
    text = text.strip()
    if match := _RELATIVE.fullmatch(text):
        return time.time_ns() - int(match[1]) * _UNIT_NS[match[2]]
    if text.isascii() and text.isdigit() and len(text) > len("20261231"):
        return _since_epoch_ns(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"option {name} is a time such as 2026-01-31T12:00:00Z or 15m, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86400 + since_epoch.seconds) * 10**9 + (
        since_epoch.microseconds * 1000
    )


def _since_epoch_ns(number: int) -> int:
    """Choose the unit by size: from 1973 on in each of them, and before 5138 in seconds."""
    for factor in (10**9, 10**6, 10**3):
        if number * factor < _MAX_TIME_NS:
            return number * factor
    return number
