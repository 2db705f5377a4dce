"""Roles: the rights of callers, and their names by a proxy's header. Pure.

A role has the rights up to its own: a viewer sees figures, a reader bodies too, an operator may do
what can be undone, an admin everything.
"""

import enum
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Right(enum.IntEnum):
    """The right that a call needs."""

    VIEW = 1  # figures
    PEEK = 2  # bodies
    OPERATE = 3  # pause, unpause, create, publish, replay
    ADMIN = 4  # empty, delete, tombstone, drain, limits, close, config


class Role(enum.IntEnum):
    """The rights up to the one of the same number."""

    VIEWER = 1
    READER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def label(self) -> str:
        """Its name in flags and replies."""
        return self.name.lower()

    @property
    def rights(self) -> list[str]:
        """The names of its rights."""
        return [right.name.lower() for right in Right if right <= self]


ROLES: Final[Mapping[str, Role]] = {role.label: role for role in Role}


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    user: str
    role: Role

    def may(self, right: Right) -> bool:
        """Whether the caller has a right."""
        return self.role >= right


class HeaderUsers:
    """The users that a proxy names in a header, and their roles."""

    def __init__(
        self,
        header: str,
        *,
        admins: Iterable[str],
        roles: Iterable[str],
        trusted: Iterable[Network],
    ) -> None:
        """Args:
        roles: each is name:role.
        trusted: from where the header is believed; none: from everywhere.
        """
        self._header = header.lower().encode("latin-1")
        pairs = (pair.rpartition(":") for pair in roles)
        self._roles = {name: ROLES[role] for name, _, role in pairs}
        self._roles |= dict.fromkeys(admins, Role.ADMIN)
        self._trusted = tuple(trusted)

    def __bool__(self) -> bool:
        """Whether roles are given out: without any, every caller may do everything."""
        return bool(self._roles)

    def find(self, headers: Mapping[bytes, bytes], remote: str) -> Caller:
        """Return the caller that the headers name; unnamed ones are viewers.

        A header that came twice has a comma in it, and so names no caller.
        """
        value = headers.get(self._header, b"")
        if not value or not self._is_trusted(remote):
            return Caller("", Role.VIEWER)
        user = value.decode("utf-8", "replace")
        role = self._roles.get(user, Role.VIEWER)
        return Caller(user, role)

    def _is_trusted(self, remote: str) -> bool:
        return not self._trusted or is_within(remote, self._trusted)


def is_within(remote: str, networks: Iterable[Network]) -> bool:
    """Whether the address of a connection, host:port, lies in one of some networks."""
    host = remote.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network or address in network for network in networks)
