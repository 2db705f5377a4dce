"""What commands do to the broker, and how they are answered."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import cast

import pytest

from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.tcp.auth import AuthError, Authorization, AuthServers, AuthState
from nsqd.tcp.read_gate import PauseReason
from tests.support.broker_rig import BrokerRig
from tests.support.connection_rig import ConnectionRig, pub, sized

UNKNOWN_ID = b"0123456789abcdef"


def mpub(*bodies: bytes) -> bytes:
    return b"MPUB t\n" + sized(pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


# --- publishing


def test_every_publish_has_its_ok() -> None:
    rig = ConnectionRig()

    rig.send(pub(b"a") * 3 + mpub(b"b", b"c") + b"DPUB t 5\n" + sized(b"d"))

    assert rig.texts() == [b"OK"] * 5
    assert rig.topic.bodies == [b"a", b"a", b"a", b"b", b"c", b"d"]
    assert rig.connection.pub_counts == {"t": 6}


@pytest.mark.parametrize("room_count", range(6))
def test_of_a_run_of_pubs_those_with_room_are_published(room_count: int) -> None:
    rig = ConnectionRig()
    rig.topic.room_count = room_count
    bodies = [b"%d" % number for number in range(5)]

    rig.publish(*bodies)

    assert rig.topic.bodies == bodies[:room_count]
    refusals = [] if room_count >= 5 else [b"E_PUB_FAILED PUB failed topic t is full"]
    assert rig.texts() == [b"OK"] * min(room_count, 5) + refusals
    assert rig.broker.refusal_count == len(refusals)
    assert rig.connection.pub_counts.get("t", 0) == min(room_count, 5)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (mpub(b"a", b"b"), b"E_MPUB_FAILED MPUB failed topic t is full"),
        (b"DPUB t 1\n" + sized(b"a"), b"E_DPUB_FAILED DPUB failed topic t is full"),
    ],
)
def test_other_publishes_are_all_or_none(command: bytes, text: bytes) -> None:
    rig = ConnectionRig()
    rig.topic.room_count = 0

    rig.send(command)

    assert rig.topic.published == []
    assert rig.texts() == [text]
    assert rig.broker.refusal_count == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClosedError(), b"E_PUB_FAILED PUB failed exiting"),
        (OSError(28, "No space left"), b"E_PUB_FAILED PUB failed no space left"),
        (DepthLimitError("topic t is full", 0), b"E_PUB_FAILED PUB failed topic t is full"),
    ],
)
@pytest.mark.parametrize("good_count", [0, 1, 2])
def test_the_cause_of_a_refusal_is_said(error: Exception, text: bytes, good_count: int) -> None:
    rig = ConnectionRig()
    for _ in range(good_count):  # the second one and those behind it go a shorter way
        rig.publish(b"good")
    rig.topic.error = error

    rig.publish(b"a")

    assert rig.texts() == [b"OK"] * good_count + [text]
    assert rig.connection.pub_counts.get("t", 0) == good_count
    assert rig.broker.refusal_count == (1 if isinstance(error, DepthLimitError) else 0)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("room_count", range(7))
def test_of_a_run_of_dpubs_those_with_room_are_published(count: int, room_count: int) -> None:
    rig = ConnectionRig()
    rig.topic.room_count = room_count
    bodies = [b"%d" % number for number in range(count)]

    rig.send(b"".join(b"DPUB t 5\n" + sized(body) for body in bodies))

    assert rig.topic.bodies == bodies[:room_count]
    refusals = [] if room_count >= count else [b"E_DPUB_FAILED DPUB failed topic t is full"]
    assert rig.texts() == [b"OK"] * min(room_count, count) + refusals
    assert rig.broker.refusal_count == len(refusals)
    assert rig.connection.pub_counts.get("t", 0) == min(room_count, count)


# --- consuming


@pytest.fixture
def consumer(tmp_path: Path) -> Iterator[ConnectionRig]:
    broker = BrokerRig(tmp_path)
    rig = ConnectionRig(broker=broker.broker)
    rig.send(b"SUB t c\n")
    assert rig.texts() == [b"OK"]
    yield rig
    rig.connection.connection_lost(None)
    broker.broker.close()


def test_a_subscription_is_seen_in_the_state(consumer: ConnectionRig) -> None:
    assert consumer.connection.parser.admission.state == 3

    consumer.send(b"RDY 7\n")
    assert consumer.connection.consumer is not None
    assert consumer.connection.consumer.ready_count == 7
    consumer.send(b"CLS\nRDY 9\nNOP\n")

    assert consumer.texts() == [b"CLOSE_WAIT"]
    assert consumer.connection.parser.admission.state == 4
    assert consumer.connection.consumer.ready_count == 0


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (b"FIN %b\n", b"E_FIN_FAILED FIN %b failed ID not in flight"),
        (b"REQ %b 0\n", b"E_REQ_FAILED REQ %b failed ID not in flight"),
        (b"TOUCH %b\n", b"E_TOUCH_FAILED TOUCH %b failed ID not in flight"),
    ],
)
def test_a_message_that_is_not_in_flight_is_no_fatal_error(
    consumer: ConnectionRig, command: bytes, text: bytes
) -> None:
    consumer.send(command % UNKNOWN_ID * 2 + b"CLS\n")

    assert consumer.texts() == [text % UNKNOWN_ID] * 2 + [b"CLOSE_WAIT"]
    assert consumer.transport.is_open


# --- rights


class FakeAuthServers:
    """Answers when the test wants it."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[AuthState]] = []

    def ask(self, _question: object) -> asyncio.Future[AuthState]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class AuthRig(ConnectionRig):
    """A client of an nsqd that wants AUTH."""

    def __init__(self) -> None:
        self.servers = FakeAuthServers()
        super().__init__(auth_servers=cast(AuthServers, self.servers))

    def answer(self, *entries: Authorization, expires_at: float = 1e18) -> None:
        self.servers.answers[-1].set_result(AuthState("me", "", entries, expires_at))
        self.advance(0)

    def fail(self) -> None:
        self.servers.answers[-1].set_exception(AuthError("no server"))
        self.advance(0)


class AnyName:
    """A pattern that matches every name."""

    def matches(self, _name: str) -> bool:
        return True


class NoName(AnyName):
    """A pattern that matches no name."""

    def matches(self, _name: str) -> bool:
        return False


def entry(pattern: AnyName | None = None) -> Authorization:
    name = pattern or AnyName()
    return Authorization(name, (AnyName(),), frozenset({"publish"}))  # type: ignore[arg-type]


AUTH = b"AUTH\n" + sized(b"secret")


@pytest.mark.parametrize(("size", "is_refused"), [(4096, False), (4097, True)])
def test_a_secret_may_be_too_long(size: int, *, is_refused: bool) -> None:
    rig = AuthRig()

    rig.send(b"AUTH\n" + sized(b"x" * size))

    refusal = b"E_BAD_BODY AUTH body too large 4097 > 4096"
    assert rig.texts() == ([refusal] if is_refused else [])


def test_commands_wait_for_the_auth_server() -> None:
    rig = AuthRig()
    rig.send(AUTH + pub(b"a"))
    assert rig.texts() == []
    assert rig.connection.gate.reasons == {PauseReason.AUTH, PauseReason.TURN}

    rig.answer(entry())

    assert rig.texts() == [b'{"identity":"me","identity_url":"","permission_count":1}', b"OK"]
    assert rig.connection.gate.reasons == set()
    assert rig.transport.is_reading()


def test_an_auth_server_that_fails_ends_the_connection() -> None:
    rig = AuthRig()
    rig.send(AUTH + pub(b"a"))

    rig.fail()

    assert rig.texts() == [b"E_AUTH_FAILED AUTH failed"]
    assert rig.topic.published == []


def test_an_answer_for_a_client_that_has_left_is_dropped() -> None:
    rig = AuthRig()
    rig.send(AUTH)
    rig.connection.connection_lost(None)

    rig.fail()

    assert rig.texts() == []


def test_rights_are_needed_to_publish() -> None:
    rig = AuthRig()

    rig.publish(b"a")

    assert rig.texts() == [b"E_AUTH_FIRST AUTH required before PUB"]


def test_an_mpub_is_refused_before_its_body_is_there() -> None:
    rig = AuthRig()
    rig.send(AUTH)
    rig.answer(entry(NoName()))
    rig.texts()

    rig.send(b"MPUB t\n")

    assert rig.texts() == [b'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""']


def test_expired_rights_are_asked_for_again_and_good_for_one_command() -> None:
    rig = AuthRig()
    rig.send(AUTH)
    rig.answer(entry(), expires_at=0.0)
    rig.texts()

    rig.send(b"NOP\n" + pub(b"a") + b"NOP\n" + pub(b"b"))
    for count in (2, 3):
        assert len(rig.servers.answers) == count
        assert rig.texts() == []
        rig.answer(entry(), expires_at=0.0)
        assert rig.texts() == [b"OK"]

    assert rig.topic.published == [[b"a"], [b"b"]]
    assert rig.transport.is_reading()
