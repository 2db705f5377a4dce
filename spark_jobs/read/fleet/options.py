"""The options of a read over HTTP: which nodes, and how to reach them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from spark_jobs.option_values import parse_count, parse_duration_s
from spark_jobs.tls import TlsSettings, parse_tls

FLEET_OPTIONS = (
    "lookupd",
    "nsqd",
    "authTokenFile",
    "tls",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsInsecure",
    "httpsPort",
    "lease",
    "timeout",
    "retries",
    "snapshotFile",
)
_HTTP_PORT = 4151
_LOOKUPD_PORT = 4161
_HTTPS_PORT = 4152
PLACE_OPTIONS = ("lookupd", "nsqd", "snapshotfile")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """The nodes, as addresses of theirs or of nsqlookupd, and how to speak to them; picklable."""

    # host:port, or a URL.
    lookupd: tuple[str, ...] = ()
    nsqd: tuple[str, ...] = ()
    token_file: str | None = None
    tls: TlsSettings | None = None
    # nsqlookupd does not know where nodes speak HTTPS.
    https_port: int = _HTTPS_PORT
    lease_s: float = 600.0
    timeout_s: float = 30.0
    retry_count: int = 6
    # A file with snapshots that are taken already, instead of nodes.
    snapshot_file: str | None = None

    def describe(self) -> str:
        """Say in a few words which nodes these are."""
        if self.lookupd:
            return f"the nodes of nsqlookupd {', '.join(self.lookupd)}"
        return f"nsqd {', '.join(self.nsqd)}" if self.nsqd else "the snapshot"


def parse_fleet_options(given: Mapping[str, str]) -> FleetOptions | None:
    """Parse the options of a read over HTTP; None if neither lookupd nor nsqd is given.

    Raises:
        ValueError: an option has no valid value, or a file cannot be read.
    """
    chosen = [name for name in PLACE_OPTIONS if given.get(name)]
    if not chosen:
        extra = [name for name in FLEET_OPTIONS if name.lower() in given]
        if extra:
            raise ValueError(f"option {extra[0]} needs the option lookupd or nsqd")
        return None
    if len(chosen) > 1:
        raise ValueError(f"options {' and '.join(chosen)} exclude each other")
    token_file = given.get("authtokenfile")
    tls = parse_tls(given)
    for path in (token_file, *((tls.ca_file, tls.cert_file, tls.key_file) if tls else ())):
        if path is not None and not os.access(path, os.R_OK):
            raise ValueError(f"cannot read {path}; it must be there on the driver and executors")
    return FleetOptions(
        lookupd=_parse_addresses("lookupd", given, _LOOKUPD_PORT),
        nsqd=_parse_addresses("nsqd", given, _HTTPS_PORT if tls else _HTTP_PORT),
        token_file=token_file,
        tls=tls,
        https_port=parse_count("httpsPort", given.get("httpsport", "4152"), maximum=65535),
        lease_s=_parse_lease(given.get("lease", "10m")),
        timeout_s=float(parse_count("timeout", given.get("timeout", "30"), maximum=3600)),
        retry_count=parse_count("retries", given.get("retries", "6"), minimum=0, maximum=1000),
        snapshot_file=given.get("snapshotfile"),
    )


def _parse_lease(text: str) -> float:
    lease_s = parse_duration_s("lease", text)
    if lease_s < 1:
        raise ValueError(f"option lease is at least 1s, not {text!r}")
    return lease_s


def _parse_addresses(name: str, given: Mapping[str, str], default_port: int) -> tuple[str, ...]:
    texts = [text.strip().rstrip("/") for text in given.get(name, "").split(",")]
    return tuple(dict.fromkeys(_parse_address(name, text, default_port) for text in texts if text))


def _parse_address(name: str, text: str, default_port: int) -> str:
    scheme, found, rest = text.rpartition("://")
    error = ValueError(f"option {name} has host:port, with commas, not {text!r}")
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port
    except ValueError:
        raise error from None
    has_more = parts.path or parts.query or parts.fragment or parts.username
    if not parts.hostname or has_more or port == 0 or (found and scheme not in ("http", "https")):
        raise error
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}{found}{host}:{port or default_port}"
