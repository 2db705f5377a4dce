"""The kinds of values an option can have, and how each is spelled.

Command lines follow Go's strconv and time packages; config files hold TOML values, which convert as
nsqd converts them. Pure functions: text or a TOML value in, a value or a ValueError out.
"""

import enum
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the values of an option are spelled: on the command line, in TOML, in the help.

    `parse` and `from_toml` raise ValueError with the reason, as users will read it.
    """

    noun: str
    parse: Callable[[str], T]
    from_toml: Callable[[object], T]
    show: Callable[[T], str]
    # The value as JSON would hold it, for GET /config.
    to_json: Callable[[T], object] = lambda value: value
    # The inverse of `to_json`, for nsqd.dat; None for kinds that it does not hold.
    from_json: Callable[[object], T] | None = None
    # `-x` alone means `-x=true`, and `-x v` leaves v alone.
    is_boolean: bool = False
    # Joins the values of a repeated flag; without it the last one wins.
    join: Callable[[T, T], T] | None = None
    # The config file spells it as the flag does, and has its own error text.
    is_special: bool = False


def toml_text(value: object) -> str:
    """Return a TOML value as log lines show it: booleans as in TOML, the rest as in Python."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong_type(noun: str, value: object) -> ValueError:
    return ValueError(f"invalid {noun} value type {type(value).__name__}")


_UNIT_NS: Mapping[str, int] = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # micro sign
    "μs": 10**3,  # Greek mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(" + "|".join(_UNIT_NS) + ")")


def parse_duration(text: str) -> float:
    """Return the seconds of Go's notation: `1m30s`, `250ms`, `-1.5h`, `0`.

    Raises:
        ValueError: anything else, a bare number included, or more than 292 years.
    """
    unsigned = text[1:] if text[:1] in {"+", "-"} else text
    if unsigned == "0":
        return 0.0
    total_ns = 0
    position = 0
    while True:
        match = _DURATION_PART.match(unsigned, position)
        if match is None or not (match[1] or match[2]):
            raise ValueError("parse error")
        whole, fraction, unit = match[1] or "0", match[2] or "", match[3]
        # Integers all the way, so that 0.1s is 100000000 ns and not one less.
        total_ns += int(whole + fraction) * _UNIT_NS[unit] // int("1" + "0" * len(fraction))
        position = match.end()
        if position == len(unsigned):
            break
    if total_ns > _INT64_MAX:
        raise ValueError("parse error")
    seconds = total_ns / 1e9
    return -seconds if text.startswith("-") else seconds


def format_duration(seconds: float) -> str:
    """Return seconds in Go's notation: `1m0s`, `250ms`, `3m23.581426829s`, `0s`."""
    nanoseconds = duration_ns(seconds)
    sign = "-" if nanoseconds < 0 else ""
    nanoseconds = abs(nanoseconds)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < 10**9:
        unit = "ns" if nanoseconds < 10**3 else "µs" if nanoseconds < 10**6 else "ms"
        return f"{sign}{_decimal(nanoseconds, _UNIT_NS[unit])}{unit}"
    minutes, rest_ns = divmod(nanoseconds, _UNIT_NS["m"])
    hours, minutes = divmod(minutes, 60)
    shown = f"{_decimal(rest_ns, 10**9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{shown}"
    if minutes:
        return f"{sign}{minutes}m{shown}"
    return sign + shown


def duration_ns(seconds: float) -> int:
    """Return whole nanoseconds, as the wire and HTTP carry durations."""
    return round(seconds * 1e9)


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


def _duration_from_toml(value: object) -> float:
    """Read a number as milliseconds: the file format is older than its durations."""
    match value:
        case str():
            return parse_duration(value)
        case int() if not isinstance(value, bool):
            if abs(value) > _INT64_MAX // _UNIT_NS["ms"]:
                raise ValueError("value out of range")
            return value / 1e3
        case _:
            raise _wrong_type("duration", value)


_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<b16>(?:_?[0-9a-fA-F])+)"
    r"|0[bB](?P<b2>(?:_?[01])+)"
    r"|0[oO]?(?P<b8>(?:_?[0-7])+)"
    r"|(?P<b10>0|[1-9](?:_?[0-9])*))"
)


def parse_bool(text: str) -> bool:
    """Read Go's spellings of true and false.

    Raises:
        ValueError: any other text.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("parse error")


def _bool_from_toml(value: object) -> bool:
    """Read numbers in their normal sense: 1 is true, although the Go nsqd has them inverted."""
    match value:
        case bool():
            return value
        case str():
            return parse_bool(value)
        case int():
            return parse_bool(str(value))
        case _:
            raise _wrong_type("bool", value)


def parse_int(text: str) -> int:
    """Read a 64-bit integer with Go's prefixes: 0x, 0b, 0o, a leading 0 for octal, and 1_000.

    Raises:
        ValueError: not an integer, or too large.
    """
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError("parse error")
    base = next(base for base in (10, 16, 8, 2) if match[f"b{base}"] is not None)
    return _in_int64(int(match["sign"] + match[f"b{base}"].replace("_", ""), base))


def _in_int64(value: int) -> int:
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError("value out of range")
    return value


def _int_from_toml(value: object) -> int:
    match value:
        case str():
            if re.fullmatch(r"[+-]?[0-9]+", value) is None:
                raise ValueError("parse error")
            return _in_int64(int(value))
        case int() if not isinstance(value, bool):
            return _in_int64(value)
        case _:
            raise _wrong_type("int", value)


def _int_from_json(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be an integer")
    return _in_int64(value)


def _text_from_toml(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _wrong_type("string", value)


def _parse_text_item(text: str) -> tuple[str, ...]:
    """Read one item of a list flag, commas and all; an empty one clears the list of the file."""
    return (text,) if text else ()


def _texts_from_toml(value: object) -> tuple[str, ...]:
    match value:
        case str():
            return tuple(item.strip() for item in value.split(",") if item.strip())
        case list():
            return tuple(_text_from_toml(item) for item in value)
        case _:
            raise _wrong_type("list", value)


def _parse_float(text: str) -> float:
    if "_" in text:  # Python's digit separator, which Go does not have here.
        raise ValueError("parse error")
    try:
        return float(text)
    except ValueError:
        raise ValueError("parse error") from None


def _descending(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(values, reverse=True))


def _parse_floats(text: str) -> tuple[float, ...]:
    return _descending(tuple(map(_parse_float, text.split(","))))


def _floats_from_toml(value: object) -> tuple[float, ...]:
    match value:
        case str():
            return tuple(map(_parse_float, value.split(",")))
        case list():
            return tuple(map(_float_from_toml, value))
        case _:
            raise _wrong_type("list", value)


def _float_from_toml(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _wrong_type("float", value)


def special(noun: str, parse: Callable[[str], T], show: Callable[[T], str], **more: Any) -> Kind[T]:
    """Return a kind of its own spelling, which the config file uses too."""
    return Kind(
        noun=noun,
        parse=parse,
        from_toml=lambda value: parse(toml_text(value)),
        show=show,
        is_special=True,
        **more,
    )


BOOL: Kind[bool] = Kind(
    noun="bool",
    parse=parse_bool,
    from_toml=_bool_from_toml,
    show=lambda value: "true" if value else "false",
    is_boolean=True,
)
INT: Kind[int] = Kind(
    noun="int", parse=parse_int, from_toml=_int_from_toml, show=str, from_json=_int_from_json
)
TEXT: Kind[str] = Kind(
    noun="string", parse=str, from_toml=_text_from_toml, show=str, from_json=_text_from_toml
)
DURATION: Kind[float] = Kind(
    noun="duration",
    parse=parse_duration,
    from_toml=_duration_from_toml,
    show=format_duration,
    to_json=duration_ns,
    from_json=lambda value: _int_from_json(value) / 1e9,
)
TEXTS: Kind[tuple[str, ...]] = Kind(
    noun="string",
    parse=_parse_text_item,
    from_toml=_texts_from_toml,
    show=",".join,
    to_json=list,
    join=lambda old, new: old + new,
)
FLOATS: Kind[tuple[float, ...]] = Kind(
    noun="floats",
    parse=_parse_floats,
    from_toml=_floats_from_toml,
    show=lambda values: ",".join(map(str, values)),
    to_json=list,
    join=lambda old, new: _descending(old + new),
)


class TLSRequired(enum.IntEnum):
    """Who must use TLS; the integers are what GET /config/tls_required shows."""

    NO = 0
    TCP_ONLY = 1
    EVERYWHERE = 2


_TLS_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def _parse_tls_required(text: str) -> TLSRequired:
    spelled = text.lower()
    if spelled == "tcp-https":
        return TLSRequired.TCP_ONLY
    try:
        return TLSRequired.EVERYWHERE if parse_bool(spelled) else TLSRequired.NO
    except ValueError:
        raise ValueError("must be true, false or tcp-https") from None


def _show_tls_required(value: TLSRequired) -> str:
    match value:
        case TLSRequired.NO:
            return "false"
        case TLSRequired.TCP_ONLY:
            return "tcp-https"
        case TLSRequired.EVERYWHERE:
            return "true"


def _parse_tls_version(text: str) -> ssl.TLSVersion:
    """Empty stands for the default, as the example config of NSQ has it."""
    spelled = text.lower() or "tls1.2"
    if spelled not in _TLS_VERSIONS:
        raise ValueError(f'unknown TLS version "{spelled}" ({", ".join(_TLS_VERSIONS)})')
    return _TLS_VERSIONS[spelled]


def _show_tls_version(version: ssl.TLSVersion) -> str:
    return next(text for text, known in _TLS_VERSIONS.items() if known == version)


TLS_REQUIRED: Kind[TLSRequired] = special(
    "true|false|tcp-https", _parse_tls_required, _show_tls_required, to_json=int, is_boolean=True
)
TLS_VERSION: Kind[ssl.TLSVersion] = special(
    "|".join(_TLS_VERSIONS), _parse_tls_version, _show_tls_version, to_json=int
)
