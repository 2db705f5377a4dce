r"""JsonFilter: which messages pass, and which of their fields. Pure.

The output is that of Go's json.Marshal: keys sorted, <, > and & as \u003c and so on. Numbers stay
as they were written; Go makes floats of them, and 1234567890123456789 would become ...768.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

_ESCAPES: Final = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\b": "\\b",
    "\f": "\\f",
}
_ESCAPED: Final = re.compile('[\\\\"\x00-\x1f<>&\u2028\u2029]')


class NotJsonError(Exception):
    """The body is no JSON object."""


class MissingFieldError(Exception):
    """The field whose value matters is not there."""


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonFilter:
    """The filter of `--require-json-field`, `--require-json-value`, `--whitelist-json-field`."""

    required_field: str = ""
    required_value: str = ""
    fields: Sequence[str] = ()

    @property
    def is_active(self) -> bool:
        """Whether bodies have to be read at all."""
        return bool(self.required_field or self.fields)

    def apply(self, body: bytes) -> bytes | None:
        """Return the body to pass on; None for a message that does not pass.

        Raises:
            NotJsonError: it is no JSON object.
            MissingFieldError: the field whose value matters is not there.
        """
        fields = _read(body)
        if self.required_field and not self._passes(fields):
            return None
        if not self.fields:
            return body
        kept = {name: fields[name] for name in self.fields if name in fields}
        return _write(kept).encode("utf-8", "replace")

    def _passes(self, fields: dict[str, Any]) -> bool:
        if self.required_field not in fields:
            if self.required_value:
                raise MissingFieldError(f"no field {self.required_field!r}")
            return False
        value = fields[self.required_field]
        if not self.required_value:
            return True
        if isinstance(value, _Number):
            try:
                return float(value) == float(self.required_value)
            except ValueError:
                return False
        return isinstance(value, str) and value == self.required_value


def _read(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(
            body.decode("utf-8", "replace"),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError) as error:
        raise NotJsonError("no JSON") from error
    if value is None:
        return {}  # As Go reads it.
    if not isinstance(value, dict):
        raise NotJsonError("no JSON object")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _write(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        # Half of a surrogate pair is no character, and has no UTF-8.
        text = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return '"' + _ESCAPED.sub(_escape, text) + '"'
    if isinstance(value, dict):
        return "{" + ",".join(f"{_write(key)}:{_write(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value)  # true, false, null


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"
