"""JSON objects as Go's encoding/json reads them into a struct.

Clients in many languages rely on it: the case of keys does not matter, the last duplicate wins,
 null leaves a field alone, numbers must be integers, bytes that are no UTF-8 become U+FFFD.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

# int64 needs 19 digits and a sign. Longer literals are not converted: Python would refuse the
# longest with an error, and take quadratic time for the others.
_MAX_INTEGER_CHARACTERS = 20
# Clients and daemons describe themselves in a few hundred bytes. Five megabytes of brackets, which
# max-body-size would let pass, take 0.7 s of the event loop and 100 MB.
MAX_OBJECT_BYTES = 64 * 1024
_SURROGATES = re.compile("[\ud800-\udfff]")

_T = TypeVar("_T")


def decode_fields(body: bytes, readers: Mapping[str, Callable[[object], Any]]) -> dict[str, Any]:
    """Return the known fields that are there and not null; null alone is an object without any.

    Args:
        readers: the functions that check and convert values, by name of the field in small letters.

    Raises:
        ValueError: no JSON object, one of more than MAX_OBJECT_BYTES, or a reader refuses a value.
    """
    if len(body) > MAX_OBJECT_BYTES:
        raise ValueError(f"JSON of {len(body)} bytes")
    try:
        value = json.loads(
            replace_surrogates(body.decode("utf-8", "surrogateescape")),
            parse_int=_parse_integer,
            parse_constant=_refuse_constant,
            object_pairs_hook=tuple,  # Keeps duplicates in order, and objects apart from arrays.
        )
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    fields = {}
    for key, member in () if value is None else _expect(tuple, value):
        name = _fold(key)
        if name in readers and member is not None:
            fields[name] = readers[name](member)
    return fields


def replace_surrogates(text: str) -> str:
    """Return the text with U+FFFD for each surrogate: it is no character, and has no encoding."""
    return _SURROGATES.sub("\ufffd", text)


def read_string(value: object) -> str:
    """Read a string.

    Raises:
        ValueError: it is none.
    """
    # An escape such as \ud800 that has no partner is no character.
    return replace_surrogates(_expect(str, value))


def read_bool(value: object) -> bool:
    """Read true or false.

    Raises:
        ValueError: it is neither.
    """
    return _expect(bool, value)


def read_int64(value: object) -> int:
    """Read an integer of 64 bits.

    Raises:
        ValueError: it is none.
    """
    return _expect_bits(value, 63)


def read_int32(value: object) -> int:
    """Read an integer of 32 bits.

    Raises:
        ValueError: it is none.
    """
    return _expect_bits(value, 31)


def _fold(key: str) -> str:
    # Unicode's simple folding also takes the long s for an s; lower() leaves it alone.
    return key.lower().replace("\N{LATIN SMALL LETTER LONG S}", "s")


def _parse_integer(literal: str) -> int | float:
    # An infinity is no int, so a known field refuses it and an unknown one ignores it.
    return int(literal) if len(literal) <= _MAX_INTEGER_CHARACTERS else math.inf


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _expect(kind: type[_T], value: object) -> _T:
    # The exact type: a bool is an int to isinstance, but not in JSON.
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected")
    return value


def _expect_bits(value: object, bits: int) -> int:
    number = _expect(int, value)
    if not -(1 << bits) <= number < 1 << bits:
        raise ValueError("integer out of range")
    return number
