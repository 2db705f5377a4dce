"""IDENTIFY: the wishes of a client, checked against the limits of the server.

Pure functions from the request's JSON to the connection's settings and the reply.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NoReturn, Self

from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.go_json import (
    decode_fields,
    read_bool,
    read_int32,
    read_int64,
    read_string,
    replace_surrogates,
)

DEFAULT_HEARTBEAT_INTERVAL_MS = 30_000
MIN_HEARTBEAT_INTERVAL_MS = 1_000
DEFAULT_OUTPUT_BUFFER_BYTES = 16_384
MIN_OUTPUT_BUFFER_BYTES = 64
MAX_SAMPLE_RATE = 99
MIN_MSG_TIMEOUT_MS = 1_000
DEFAULT_DEFLATE_LEVEL = 6

# Every statistic of a client shows them.
TEXT_FIELDS: Final = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
MAX_TEXT_BYTES: Final = 255

# A client sends this to switch heartbeats or output buffering off.
_OFF: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyLimits:
    """The server's side of the negotiation: the same for all connections of a daemon."""

    version: str
    max_rdy_count: int
    msg_timeout_ms: int
    max_msg_timeout_ms: int
    max_heartbeat_interval_ms: int
    output_buffer_timeout_ms: int
    min_output_buffer_timeout_ms: int
    max_output_buffer_timeout_ms: int
    max_output_buffer_size: int
    has_tls: bool
    deflate: bool
    max_deflate_level: int
    snappy: bool
    auth_required: bool
    topology_region: str
    topology_zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The agreement for one connection.

    `tls_v1`, `snappy` and `deflate` are true if granted, not if asked for. They stay true once
    granted: an upgrade is for the life of the connection, and it is due when the flag is new.
    """

    client_id: str
    hostname: str
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval_ms: int  # 0: no heartbeats, no deadlines
    output_buffer_size: int  # 1: unbuffered
    output_buffer_timeout_ms: int  # 0: no timed flush
    sample_rate: int = 0  # 0: off
    msg_timeout_ms: int
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int
    topology_region: str = ""
    topology_zone: str = ""
    is_identified: bool = False  # an IDENTIFY has come

    @classmethod
    def initial(cls, limits: IdentifyLimits, remote_ip: str) -> Self:
        """Return the settings of a connection that has not sent IDENTIFY."""
        return cls(
            client_id=remote_ip,
            hostname=remote_ip,
            heartbeat_interval_ms=DEFAULT_HEARTBEAT_INTERVAL_MS,
            output_buffer_size=DEFAULT_OUTPUT_BUFFER_BYTES,
            output_buffer_timeout_ms=limits.output_buffer_timeout_ms,
            msg_timeout_ms=limits.msg_timeout_ms,
            deflate_level=min(DEFAULT_DEFLATE_LEVEL, limits.max_deflate_level),
        )


@dataclass(slots=True)
class _Request:
    """The fields of the JSON object; a zero value is the same as an absent field."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""


def negotiate(
    body: bytes, current: ClientSettings, limits: IdentifyLimits
) -> tuple[ClientSettings, bytes]:
    """Return the settings after an IDENTIFY with this body, and the data of the reply frame.

    The reply announces the upgrades that start now; one that a former IDENTIFY started is reported
    as false, so that the client does not begin it again.

    Args:
        body: the JSON as it came.
        current: the settings in force; fields that are absent or 0 keep their value.

    Raises:
        FatalClientError: the body cannot be decoded, or asks for values that the limits forbid.
    """
    request = _decode(body)
    for name in TEXT_FIELDS:
        size = len(getattr(request, name).encode())
        if size > MAX_TEXT_BYTES:
            _refuse(f"{name} too large {size} > {MAX_TEXT_BYTES}")
    settings = _apply_values(request, current, limits)
    if not request.feature_negotiation:
        return settings, b"OK"
    settings = _apply_features(request, settings, limits)
    return settings, _encode_reply(settings, current, limits)


def _apply_values(
    request: _Request, current: ClientSettings, limits: IdentifyLimits
) -> ClientSettings:
    # The order of the checks is nsqd's; the client reads the error of the first that fails.
    heartbeat_interval_ms = _choose(
        request.heartbeat_interval,
        (MIN_HEARTBEAT_INTERVAL_MS, limits.max_heartbeat_interval_ms),
        current.heartbeat_interval_ms,
        "heartbeat interval",
        off=0,
    )
    output_buffer_timeout_ms = _choose(
        request.output_buffer_timeout,
        (limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms),
        current.output_buffer_timeout_ms,
        "output buffer timeout",
        off=0,
    )
    output_buffer_size = _choose(
        request.output_buffer_size,
        (MIN_OUTPUT_BUFFER_BYTES, limits.max_output_buffer_size),
        current.output_buffer_size,
        "output buffer size",
        off=1,
    )
    if request.output_buffer_size == _OFF:
        output_buffer_timeout_ms = 0
    if not 0 <= request.sample_rate <= MAX_SAMPLE_RATE:
        _refuse(f"sample rate ({request.sample_rate}) is invalid")
    msg_timeout_ms = _choose(
        request.msg_timeout,
        (MIN_MSG_TIMEOUT_MS, limits.max_msg_timeout_ms),
        current.msg_timeout_ms,
        "msg timeout",
    )
    return replace(
        current,
        is_identified=True,
        client_id=request.client_id,
        hostname=request.hostname,
        user_agent=request.user_agent,
        feature_negotiation=request.feature_negotiation,
        heartbeat_interval_ms=heartbeat_interval_ms,
        output_buffer_size=output_buffer_size,
        output_buffer_timeout_ms=output_buffer_timeout_ms,
        sample_rate=request.sample_rate,
        msg_timeout_ms=msg_timeout_ms,
        topology_region=request.topology_region,
        topology_zone=request.topology_zone,
    )


def _choose(
    asked: int, bounds: tuple[int, int], current: int, name: str, *, off: int | None = None
) -> int:
    if asked == 0:
        return current
    if asked == _OFF and off is not None:
        return off
    if not bounds[0] <= asked <= bounds[1]:
        _refuse(f"{name} ({asked}) is invalid")
    return asked


def _apply_features(
    request: _Request, settings: ClientSettings, limits: IdentifyLimits
) -> ClientSettings:
    deflate = limits.deflate and request.deflate
    snappy = limits.snappy and request.snappy
    if (deflate or settings.deflate) and (snappy or settings.snappy):
        raise FatalClientError(
            ErrorCode.E_IDENTIFY_FAILED, "cannot enable both deflate and snappy compression"
        )
    deflate_level = settings.deflate_level
    if deflate and not settings.deflate and request.deflate_level > 0:
        deflate_level = min(request.deflate_level, limits.max_deflate_level)
    return replace(
        settings,
        tls_v1=settings.tls_v1 or (limits.has_tls and request.tls_v1),
        snappy=settings.snappy or snappy,
        deflate=settings.deflate or deflate,
        deflate_level=deflate_level,
    )


def _encode_reply(
    settings: ClientSettings, previous: ClientSettings, limits: IdentifyLimits
) -> bytes:
    reply = {
        "max_rdy_count": limits.max_rdy_count,
        "version": limits.version,
        "max_msg_timeout": limits.max_msg_timeout_ms,
        "msg_timeout": settings.msg_timeout_ms,
        "tls_v1": settings.tls_v1 and not previous.tls_v1,
        "deflate": settings.deflate and not previous.deflate,
        "deflate_level": settings.deflate_level,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": settings.snappy and not previous.snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": limits.auth_required,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": settings.output_buffer_timeout_ms,
        "topology_region": replace_surrogates(limits.topology_region),
        "topology_zone": replace_surrogates(limits.topology_zone),
    }
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()


def _refuse(text: str) -> NoReturn:
    raise FatalClientError(ErrorCode.E_BAD_BODY, f"IDENTIFY {text}")


def _decode(body: bytes) -> _Request:
    try:
        return _Request(**decode_fields(body, _READERS))
    except ValueError as error:
        raise FatalClientError(
            ErrorCode.E_BAD_BODY, "IDENTIFY failed to decode JSON body"
        ) from error


_READERS: Final[dict[str, Callable[[object], str | bool | int]]] = {
    "client_id": read_string,
    "hostname": read_string,
    "user_agent": read_string,
    "feature_negotiation": read_bool,
    "heartbeat_interval": read_int64,
    "output_buffer_size": read_int64,
    "output_buffer_timeout": read_int64,
    "sample_rate": read_int32,
    "msg_timeout": read_int64,
    "tls_v1": read_bool,
    "snappy": read_bool,
    "deflate": read_bool,
    "deflate_level": read_int64,
    "topology_region": read_string,
    "topology_zone": read_string,
}
