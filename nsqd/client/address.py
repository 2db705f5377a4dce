"""Address: where an nsqd listens. Apart from the settings, which are slower to load."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DEFAULT_TCP_PORT: Final = 4150
DEFAULT_LOOKUPD_PORT: Final = 4161
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:\[\]/\s]+))(?::(?P<port>\d{1,5}))?"
)


class Address(NamedTuple):
    """Where an nsqd listens: a host and a port, or the path of a unix socket."""

    host: str  # an IPv6 address has no brackets; a path of a socket has a slash
    port: int = DEFAULT_TCP_PORT

    @classmethod
    def parse(cls, text: str | Address, default_port: int = DEFAULT_TCP_PORT) -> Address:
        """Take `host`, `host:port`, `[v6]:port` or a path apart.

        Raises:
            ValueError: the text is none of them.
        """
        if isinstance(text, Address):
            return text
        if "/" in text:
            return cls(text.removeprefix("unix:"), 0)
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(f"not an address: {text[:200]!r}")
        port = int(match["port"] or default_port)
        if not 0 < port < 0x10000:
            raise ValueError(f"not a port: {text[:200]!r}")
        return cls(match["six"] or match["host"], port)

    @property
    def is_unix(self) -> bool:
        """Whether this is the path of a unix socket."""
        return "/" in self.host

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
