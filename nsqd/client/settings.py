"""Settings of the client's connections: TLS, compression, the fields of IDENTIFY."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from nsqd import __version__

if TYPE_CHECKING:
    import ssl

USER_AGENT: Final = f"nsqd-python/{__version__}"

Compression = Literal["snappy", "deflate"]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS towards nsqd; paths of PEM files.

    Attributes:
        ca: the authorities to trust; None for those of the system.
        cert: this client's certificate, for nsqds that ask for one.
        verifies: False trusts every server, for tests.
        min_version: None for TLS 1.2.
        server_name: the name in the server's certificate, where that is not its host.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verifies: bool = True
    min_version: ssl.TLSVersion | None = None
    server_name: str | None = None

    def make_context(self) -> ssl.SSLContext:
        """Return a context for Python's ssl.

        Raises:
            OSError: a file cannot be read, or is no PEM file.
        """
        import ssl  # Here: most clients speak no TLS, and it is slow to load.

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self.verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca is not None:
            context.load_verify_locations(self.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        context.minimum_version = self.min_version or ssl.TLSVersion.TLSv1_2
        return context


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of each connection. Times are seconds.

    Attributes:
        auth_secret: sent with AUTH; in no text of this client, and not in a repr.
        sample_rate: percent of the messages that nsqd delivers; 0 is all.
        local_address: host and port to connect from; port 0 is any.
    """

    tls: Tls | None = None
    auth_secret: str | bytes | None = field(default=None, repr=False)
    compression: Compression | None = None
    deflate_level: int = 6
    connect_timeout: float = 5.0
    local_address: tuple[str, int] | None = None
    heartbeat_interval: float = 30.0
    msg_timeout: float | None = None
    sample_rate: int = 0
    output_buffer_size: int | None = None
    output_buffer_timeout: float | None = None
    client_id: str = ""
    hostname: str = ""
    user_agent: str = USER_AGENT
    topology_region: str = ""
    topology_zone: str = ""

    def __post_init__(self) -> None:
        if self.compression not in (None, "snappy", "deflate"):
            raise ValueError(f"unknown compression {self.compression!r}")
        if not 0 <= self.sample_rate <= 99:
            raise ValueError("sample_rate is 0 to 99 percent")
        if self.heartbeat_interval < 1:
            raise ValueError("heartbeat_interval is 1 second or more")

    def identify_fields(self) -> dict[str, object]:
        """Return the body of IDENTIFY."""
        hostname = self.hostname or socket.gethostname()
        fields: dict[str, object] = {
            "client_id": self.client_id or f"{hostname.partition('.')[0]}/{os.getpid()}",
            "hostname": hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": round(self.heartbeat_interval * 1000),
            "tls_v1": self.tls is not None,
            "snappy": self.compression == "snappy",
            "deflate": self.compression == "deflate",
        }
        optional: dict[str, object] = {
            "deflate_level": self.deflate_level if self.compression == "deflate" else None,
            "sample_rate": self.sample_rate or None,
            "msg_timeout": _milliseconds(self.msg_timeout),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _milliseconds(self.output_buffer_timeout),
            "topology_region": self.topology_region or None,
            "topology_zone": self.topology_zone or None,
        }
        return fields | {name: value for name, value in optional.items() if value is not None}


class ConnectionOptions(TypedDict, total=False):
    """The fields of Settings as keyword arguments of producers and consumers."""

    tls: Tls | None
    auth_secret: str | bytes | None
    compression: Compression | None
    deflate_level: int
    connect_timeout: float
    local_address: tuple[str, int] | None
    heartbeat_interval: float
    msg_timeout: float | None
    sample_rate: int
    output_buffer_size: int | None
    output_buffer_timeout: float | None
    client_id: str
    hostname: str
    user_agent: str
    topology_region: str
    topology_zone: str


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
