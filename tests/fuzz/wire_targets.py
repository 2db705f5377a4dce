"""What a TCP client sends: commands, the body of IDENTIFY, compressed streams."""

import json
from collections.abc import Callable

from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.command_parser import CommandParser, LineTooLongError
from nsqd.protocol.compression import Codec, CompressionError, DeflateCodec, SnappyCodec
from nsqd.protocol.errors import FatalClientError
from nsqd.protocol.identify import (
    MAX_SAMPLE_RATE,
    MIN_MSG_TIMEOUT_MS,
    ClientSettings,
    IdentifyLimits,
    negotiate,
)
from tests.fuzz.splits import cut
from tests.support.reference_parser import (
    TOO_LONG,
    AdmitAll,
    Outcome,
    ReferenceParser,
    flatten,
    pull,
)

LIMITS = CommandLimits(max_msg_size=1000, max_body_size=5000, max_rdy_count=2500, max_defer_ms=9999)
IDENTIFY_LIMITS = IdentifyLimits(
    version="1.3.0",
    max_rdy_count=2500,
    msg_timeout_ms=60_000,
    max_msg_timeout_ms=900_000,
    max_heartbeat_interval_ms=60_000,
    output_buffer_timeout_ms=250,
    min_output_buffer_timeout_ms=25,
    max_output_buffer_timeout_ms=30_000,
    max_output_buffer_size=65_536,
    has_tls=True,
    deflate=True,
    max_deflate_level=6,
    snappy=True,
    auth_required=False,
    topology_region="r",
    topology_zone="z",
)
# What one turn may decode, and how much of a bomb is worth looking at.
TURN_BYTES = 1000
MAX_PLAIN_BYTES = 64 * 1024


def check_commands(data: bytes) -> None:
    """Commands mean the same however the bytes are cut, and what the slow reading says."""
    whole = read_commands([data])

    assert whole == ReferenceParser(LIMITS, data).outcome()
    assert read_commands(cut(data)) == whole


def read_commands(pieces: list[bytes]) -> Outcome:
    """Do what a connection does, with its short cut."""
    parser = CommandParser(LIMITS, AdmitAll())
    outcome = Outcome()
    try:
        for piece in pieces:
            body = parser.find_lone_publish(piece)
            if body is not None:
                outcome.events.append(("PUB", parser.pub_topic, body))
                continue
            was_begun = bool(parser.error_at_eof)
            count = len(outcome.events)
            parser.feed(piece)
            for command in pull(parser):
                outcome.events += flatten(command)
            if was_begun and count == len(outcome.events):
                assert parser.is_dragging
            elif count < len(outcome.events):
                assert not parser.is_dragging
    except FatalClientError as error:
        outcome.error = error.frame_data
        return outcome
    except LineTooLongError:
        outcome.error = TOO_LONG
        return outcome
    at_eof = parser.error_at_eof
    outcome.error_at_eof = None if at_eof is None else at_eof.frame_data
    return outcome


def check_identify(data: bytes) -> None:
    """Whatever is asked for, what is agreed is within the limits, and the reply is JSON."""
    settings = ClientSettings.initial(IDENTIFY_LIMITS, "127.0.0.1")
    for _ in range(2):
        before = settings
        try:
            settings, reply = negotiate(data, before, IDENTIFY_LIMITS)
        except FatalClientError:
            return
        heartbeat_ms = settings.heartbeat_interval_ms
        buffer_ms = settings.output_buffer_timeout_ms
        assert heartbeat_ms == 0 or 1000 <= heartbeat_ms <= 60_000
        assert buffer_ms == 0 or 25 <= buffer_ms <= 30_000
        assert settings.output_buffer_size == 1 or 64 <= settings.output_buffer_size <= 65_536
        assert 0 <= settings.sample_rate <= MAX_SAMPLE_RATE
        assert MIN_MSG_TIMEOUT_MS <= settings.msg_timeout_ms <= 900_000
        assert 1 <= settings.deflate_level <= 6
        assert not (settings.snappy and settings.deflate)
        for text in (settings.client_id, settings.hostname, settings.user_agent):
            text.encode()
        if reply != b"OK":
            assert json.loads(reply)["tls_v1"] == (settings.tls_v1 and not before.tls_v1)


def check_compression(data: bytes) -> None:
    """A stream gives the same bytes however it is cut, never more at a time than asked for."""
    makers: tuple[Callable[[], Codec], ...] = (
        SnappyCodec,
        lambda: DeflateCodec(6),
    )
    for make in makers:
        whole, is_whole_good = decode(make(), [data])
        parts, is_good = decode(make(), cut(data))
        if max(len(parts), len(whole)) < MAX_PLAIN_BYTES:
            assert is_good == is_whole_good
            assert parts == whole or not is_good
        # What comes before a fault may or may not be given out.
        assert parts.startswith(whole) or whole.startswith(parts)


def decode(codec: Codec, pieces: list[bytes]) -> tuple[bytes, bool]:
    """Return what comes out, a bomb's beginning only, and whether it was valid so far."""
    plain = bytearray()
    try:
        for piece in pieces:
            rest = piece
            while True:
                decoded = codec.decode(rest, TURN_BYTES)
                assert len(decoded) <= TURN_BYTES
                plain += decoded
                rest = b""
                if len(plain) >= MAX_PLAIN_BYTES:
                    return bytes(plain), True
                if not codec.has_pending:
                    break
    except CompressionError:
        return bytes(plain), False
    return bytes(plain), True
