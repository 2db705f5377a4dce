"""The beginning of a connection, without one."""

import json
import struct
from typing import Any

import pytest

from nsqd.client.errors import AuthError, ConnectError, NegotiationError
from nsqd.client.handshake import Handshake, Negotiated, Step
from nsqd.client.settings import Settings, Tls
from nsqd.protocol.compression import Codec, DeflateCodec, SnappyCodec

SECRET = "open sesame"
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def frame(data: bytes, kind: int = 0) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def answer(**fields: Any) -> bytes:
    given = {"max_rdy_count": 100, "msg_timeout": 2000, "max_msg_timeout": 5000} | fields
    return frame(json.dumps(given).encode())


def feed(handshake: Handshake, data: bytes, step: int) -> bytes:
    return b"".join(handshake.feed(data[i : i + step]) for i in range(0, len(data), step))


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_plain_connection(step: int) -> None:
    handshake = Handshake(Settings(msg_timeout=2.0))

    start = handshake.start()
    feed(handshake, answer(), step)

    assert start.startswith(b"  V2IDENTIFY\n")
    assert json.loads(start[17:])["msg_timeout"] == 2000
    assert handshake.step is Step.DONE
    negotiated = handshake.negotiated
    assert (negotiated.max_rdy_count, negotiated.msg_timeout) == (100, 2.0)
    assert negotiated.max_msg_timeout == 5.0


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_compression_begins_at_the_byte_behind_the_answer(name: str, step: int) -> None:
    peer: Codec = SnappyCodec() if name == "snappy" else DeflateCodec(6)
    handshake = Handshake(Settings(compression=name))  # type: ignore[arg-type] # one of both
    behind = frame(b"later")

    feed(handshake, answer(**{name: True}) + peer.encode(OK + behind), step)

    assert handshake.step is Step.DONE
    assert handshake.take_rest() == behind


def test_tls_waits_for_the_caller_and_compression_follows_inside() -> None:
    peer = SnappyCodec()
    handshake = Handshake(Settings(tls=Tls(), compression="snappy", auth_secret=SECRET))

    steps = []
    handshake.feed(answer(tls_v1=True, snappy=True, auth_required=True))
    steps.append(handshake.step)
    handshake.confirm_tls()
    sent = handshake.feed(OK + peer.encode(OK))
    steps.append(handshake.step)
    handshake.feed(peer.encode(frame(b'{"identity":""}')))
    steps.append(handshake.step)

    assert peer.decode(sent, 1000) == b"AUTH\n\x00\x00\x00\x0bopen sesame"
    assert steps == [Step.STARTING_TLS, Step.AUTHENTICATING, Step.DONE]


def test_bytes_in_the_clear_where_tls_begins_are_refused() -> None:
    handshake = Handshake(Settings(tls=Tls()))

    with pytest.raises(ConnectError):
        handshake.feed(answer(tls_v1=True) + OK)


@pytest.mark.parametrize(
    "settings",
    [Settings(tls=Tls()), Settings(compression="snappy"), Settings(compression="deflate")],
    ids=["tls", "snappy", "deflate"],
)
@pytest.mark.parametrize("reply", [answer(), OK], ids=["refused", "no negotiation"])
def test_a_feature_that_is_not_granted_is_an_error(settings: Settings, reply: bytes) -> None:
    with pytest.raises(NegotiationError):
        Handshake(settings).feed(reply)


def test_a_secret_is_sent_only_where_it_is_wanted() -> None:
    handshake = Handshake(Settings(auth_secret=SECRET))

    assert handshake.feed(answer(auth_required=False)) == b""
    assert handshake.step is Step.DONE


def test_a_missing_secret_is_an_error() -> None:
    with pytest.raises(AuthError):
        Handshake(Settings()).feed(answer(auth_required=True))


def test_a_refused_secret_is_an_error() -> None:
    handshake = Handshake(Settings(auth_secret=SECRET))
    handshake.feed(answer(auth_required=True))

    with pytest.raises(AuthError, match="E_UNAUTHORIZED"):
        handshake.feed(frame(b"E_UNAUTHORIZED AUTH no authorizations found", 1))


def test_a_refused_setting_is_an_error() -> None:
    with pytest.raises(NegotiationError, match="sample rate"):
        Handshake(Settings()).feed(frame(b"E_BAD_BODY IDENTIFY sample rate is invalid", 1))


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"\x00" * 8, frame(b"x", 2)])
def test_another_protocol_is_an_error(data: bytes) -> None:
    with pytest.raises(ConnectError):
        Handshake(Settings()).feed(data)


@pytest.mark.parametrize("data", [b"[]", b"no json", b'{"msg_timeout": "long"}'])
def test_a_strange_answer_to_identify_is_an_error(data: bytes) -> None:
    with pytest.raises(ConnectError):
        Negotiated.parse(data)


def test_a_heartbeat_during_the_handshake_is_answered() -> None:
    handshake = Handshake(Settings(auth_secret=SECRET))
    handshake.feed(answer(auth_required=True))

    assert handshake.feed(frame(b"_heartbeat_")) == b"NOP\n"
    assert handshake.step is Step.AUTHENTICATING


def test_the_secret_is_in_no_repr() -> None:
    assert SECRET not in repr(Settings(auth_secret=SECRET))
