"""LimitOverrides: the limits that a topic has of its own, set over HTTP and kept in nsqd.dat."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from nsqd.config.limits import LIMITS, Limits

_FIELD_NAMES = frozenset(limit.field_name for limit in LIMITS)


class LimitOverrides:
    """Values for some fields of `Limits`; for the others the flags hold."""

    __slots__ = ("values",)

    def __init__(self, **values: Any) -> None:
        """Args: values: by the name of the field; None is as good as not given."""
        assert values.keys() <= _FIELD_NAMES, f"no such limits: {values.keys() - _FIELD_NAMES}"
        self.values = {name: value for name, value in values.items() if value is not None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LimitOverrides) and self.values == other.values

    def __hash__(self) -> int:
        return hash(frozenset(self.values.items()))

    def __repr__(self) -> str:
        return f"LimitOverrides(**{self.values!r})"

    def over(self, flags: Limits) -> Limits:
        """Return the flags' limits with these in their place."""
        return replace(flags, **self.values)

    def to_json(self) -> dict[str, object]:
        """Return the values as nsqd.dat holds them: durations in nanoseconds."""
        return {
            limit.name: limit.kind.to_json(self.values[limit.field_name])
            for limit in LIMITS
            if limit.field_name in self.values
        }

    @classmethod
    def from_json(cls, content: object) -> Self:
        """Read the result of `to_json`; null is as good as nothing, unknown keys are ignored.

        Raises:
            ValueError: it is not of that shape.
        """
        if content is None:
            return cls()
        if not isinstance(content, Mapping):
            raise ValueError("'limits' is not an object")
        values = {}
        for limit in LIMITS:
            value = content.get(limit.name)
            if value is not None:
                try:
                    values[limit.field_name] = limit.from_json(value)
                except ValueError as error:
                    raise ValueError(f"{limit.name!r} {error}") from error
        return cls(**values)


NO_OVERRIDES = LimitOverrides()
