"""Any bytes, split anywhere, mean what they mean when read slowly from the start."""

import tracemalloc
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nsqd.protocol import command_parser, commands
from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.command_parser import CommandParser, LineTooLongError, read_sized_in_python
from nsqd.protocol.errors import FatalClientError
from tests.support.reference_parser import (
    MAX_LINE_BYTES,
    TOO_LONG,
    AdmitAll,
    Outcome,
    ReferenceParser,
    flatten,
    pull,
)

LIMITS = CommandLimits(max_msg_size=60, max_body_size=300, max_rdy_count=2500, max_defer_ms=3600)
WIDE = CommandLimits(
    max_msg_size=1 << 20, max_body_size=5 << 20, max_rdy_count=2500, max_defer_ms=3600
)
ID = b"0123456789abcdef"


@pytest.fixture(scope="module", autouse=True, params=[1, command_parser.MIN_AHEAD_BYTES])
def ahead_bytes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read the rest of a chunk in place always, or only if it is large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_parser, "MIN_AHEAD_BYTES", request.param)
        yield


def observe(chunks: Iterable[bytes], limits: CommandLimits = LIMITS) -> Outcome:
    """Feed the parser chunk by chunk, and note what comes out."""
    parser = CommandParser(limits, AdmitAll())
    outcome = Outcome()
    try:
        for chunk in chunks:
            # As a connection does it: the short cut must change nothing.
            if (body := parser.find_lone_publish(chunk)) is not None:
                outcome.events.append(("PUB", parser.pub_topic, body))
                continue
            parser.feed(chunk)
            for command in pull(parser):
                outcome.events += flatten(command)
    except FatalClientError as error:
        outcome.error = error.frame_data
    except LineTooLongError:
        outcome.error = TOO_LONG
    else:
        error_at_eof = parser.error_at_eof
        outcome.error_at_eof = None if error_at_eof is None else error_at_eof.frame_data
    return outcome


def feed_in_pieces(parser: CommandParser, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size])
        deque(pull(parser), maxlen=0)


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    edges = [0, *places, len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def encode_mpub(topic: bytes, bodies: list[bytes]) -> bytes:
    content = pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return b"MPUB " + topic + b"\n" + sized(content)


names = st.sampled_from([b"t", b"u", b"topic#ephemeral"])
topics = st.one_of(names, st.just(b"t\r"))  # the CR belongs to the end of the line
ids = st.sampled_from([ID, b"fedcba9876543210", b"\x00" * 16, b"0123456\r89abcdef"])
plain_bodies = st.binary(min_size=1, max_size=12)
bodies = st.one_of(
    st.sampled_from([b"a", b"b", b"ab"]),  # equal sizes make runs
    plain_bodies,
    # Text and sizes that look like what follows.
    st.sampled_from(
        [
            b"PUB t\n\x00\x00\x00\x01a",
            b"PUB t\n\x00\x00\x00\x0b",
            b"\x00\x00\x00\x01a\x00\x00\x00\x01",
            b"FIN " + ID + b"\n",
            b"NOP\nNOP\n",
            b"MPUB t\n\x00\x00\x00\x01",
        ]
    ),
)


@st.composite
def mpubs(draw: st.DrawFn) -> bytes:
    contents = draw(st.lists(bodies, min_size=1, max_size=7))
    if draw(st.booleans()):
        contents = [contents[0]] * len(contents)
    return encode_mpub(draw(topics), contents)


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    unit = draw(
        st.one_of(
            st.builds(lambda body: b"PUB t\n" + sized(body), bodies),
            st.builds(lambda message_id: b"FIN " + message_id + b"\n", ids),
        )
    )
    return unit * draw(st.integers(2, 20))


good_commands = st.one_of(
    st.builds(lambda topic, body: b"PUB " + topic + b"\n" + sized(body), topics, bodies),
    mpubs(),
    runs(),
    st.builds(lambda topic, body: b"DPUB " + topic + b" 10\n" + sized(body), names, bodies),
    st.builds(lambda message_id: b"FIN " + message_id + b"\n", ids),
    st.builds(lambda message_id: b"FIN " + message_id + b"\r\n", ids),
    st.builds(lambda message_id: b"TOUCH " + message_id + b"\n", ids),
    st.builds(lambda message_id, ms: b"REQ %b %d\n" % (message_id, ms), ids, st.integers(0, 9999)),
    st.builds(lambda count: b"RDY %d\n" % count, st.integers(0, 2500)),
    # As long as a FIN: the rows of a run stay in step across it.
    st.just(b"RDY 0000000000000001\n"),
    st.sampled_from([b"NOP\n", b"NOP\r\n", b"RDY\n", b"CLS\n", b"SUB t c\n", b"SUB t c\r\n"]),
    st.builds(lambda body: b"IDENTIFY\n" + sized(body), bodies),
    st.builds(lambda body: b"AUTH\n" + sized(body), bodies),
)
bad_commands = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"\n",
            b"nop\n",
            b"PUB\n",
            b"PUB  t\n",
            b"PUB t\n\x00\x00\x00\x00",
            b"PUB t\n\xff\xff\xff\xff",
            b"PUB t\n\x00\x00\x00\x3d",
            b"MPUB t\n\x00\x00\x00\x00",
            b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x00",
            b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x00",
            b"MPUB t\n\x00\x00\x00\x09\x7f\xff\xff\xff",
            b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x02\xff\xff\xff\xff",
            b"FIN 0123456\n89abcdef\n",
            b"FIN 01234 6789abcdef\n",
            b"FIN x\n",
            b"RDY 2501\n",
            b"RDY x\n",
            b"REQ " + ID + b" -1\n",
            b"SUB t c%\n",
            b"AUTH x\n",
        ]
    ),
)
cuts = st.lists(st.integers(0, 10_000), max_size=12)


@settings(max_examples=200)
@given(st.lists(good_commands, min_size=1, max_size=20), cuts)
def test_any_split_of_good_commands_gives_the_same_commands(
    parts: list[bytes], places: list[int]
) -> None:
    data = b"".join(parts)

    outcome = observe(split(data, places))

    assert outcome == ReferenceParser(LIMITS, data).outcome()
    assert outcome.error is None
    assert outcome.error_at_eof is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(good_commands, min_size=1, max_size=6))
def test_commands_may_come_byte_by_byte(parts: list[bytes]) -> None:
    data = b"".join(parts)

    outcome = observe(data[index : index + 1] for index in range(len(data)))

    assert outcome == ReferenceParser(LIMITS, data).outcome()


@settings(max_examples=200)
@given(
    st.lists(good_commands, max_size=8),
    bad_commands,
    st.lists(good_commands, max_size=2),
    st.integers(0, 10_000),
    cuts,
)
def test_errors_come_after_what_was_good_and_where_the_input_may_stop(
    before: list[bytes], bad: bytes, after: list[bytes], stop: int, places: list[int]
) -> None:
    data = b"".join([*before, bad, *after])
    data = data[: len(data) - stop % (len(data) + 1)] if stop % 2 else data

    assert observe(split(data, places)) == ReferenceParser(LIMITS, data).outcome()


@settings(max_examples=150)
@given(st.binary(max_size=600), cuts)
@example(b"FIN 0123456\n89abcdef\n", [])
def test_random_bytes_are_an_error_or_nothing(data: bytes, places: list[int]) -> None:
    assert observe(split(data, places)) == ReferenceParser(LIMITS, data).outcome()


@settings(max_examples=200)
@given(
    st.lists(good_commands, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cuts,
)
def test_good_commands_with_some_bytes_changed(
    parts: list[bytes], changes: list[tuple[int, int]], places: list[int]
) -> None:
    data = bytearray(b"".join(parts))
    for place, value in changes:
        data[place % len(data)] = value

    assert observe(split(bytes(data), places)) == ReferenceParser(LIMITS, bytes(data)).outcome()


@settings(max_examples=30)
@given(st.integers(-2, 2), st.lists(st.integers(0, 40_000), max_size=6), st.booleans())
def test_the_line_limit_holds_for_any_split(
    surplus: int,
    places: list[int],
    has_end: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    # W-12
    line = b"NOP " + b"x" * (MAX_LINE_BYTES - 5 + surplus)
    data = b"NOP\n" + line + (b"\nNOP\n" if has_end else b"")

    assert observe(split(data, places)) == ReferenceParser(LIMITS, data).outcome()


STREAM = b"".join(
    [
        b"IDENTIFY\n" + sized(b"{}"),
        b"SUB t c\n",
        *[b"PUB t\n" + sized(b"body %d" % number) for number in range(3)],
        b"PUB t\n" + sized(b"longer"),
        encode_mpub(b"t", [b"a", b"bc", b"d"]),
        encode_mpub(b"t", [b"ef", b"gh"]),
        b"DPUB t 10\n" + sized(b"late"),
        b"DPUB t 10\n" + sized(b"last"),
        (b"FIN " + ID + b"\n") * 2,
        b"REQ " + ID + b" 5\r\n",
        b"REQ " + ID + b" 5\r\n",
        b"TOUCH " + ID + b"\nRDY 3\nCLS\n",
    ]
)


def test_every_split_in_two_gives_the_same() -> None:
    expected = ReferenceParser(LIMITS, STREAM).outcome()
    assert len(expected.events) == 17

    for place in range(len(STREAM) + 1):
        assert observe([STREAM[:place], STREAM[place:]]) == expected, place


def test_every_split_in_three_gives_the_same() -> None:
    """With a middle that ends, or does not end, what was begun before."""
    expected = ReferenceParser(LIMITS, STREAM).outcome()
    for size in (1, 2, 3, 5, 9, 17, 40):
        for place in range(len(STREAM) - size):
            chunks = [STREAM[:place], STREAM[place : place + size], STREAM[place + size :]]
            assert observe(chunks) == expected, (place, size)


def test_a_stream_may_end_anywhere() -> None:
    for end in range(len(STREAM)):
        data = STREAM[:end]
        expected = ReferenceParser(LIMITS, data).outcome()
        assert observe([data]) == expected, end
        assert observe([data[: end // 2], data[end // 2 :]]) == expected, end


def test_an_mpub_is_cut_up_alike_in_bulk_and_one_by_one() -> None:
    equal = [bytes([number % 256]) * 200 for number in range(5000)]
    mixed = [bytes([number % 256]) * (number % 300 + 1) for number in range(5000)]
    data = encode_mpub(b"t", equal) + encode_mpub(b"t", mixed)

    outcome = observe(split(data, range(0, len(data), 65536)), WIDE)

    assert outcome.events == [("MPUB", "t", *equal), ("MPUB", "t", *mixed)]


# Each of these looks, for some of the bulk paths, as if a run began with every command.
HOSTILE_UNITS = {
    "a PUB and a NOP": b"PUB t\n\x00\x00\x00\x01aNOP\n",
    "three PUBs and a NOP": b"PUB t\n\x00\x00\x00\x01a" * 3 + b"NOP\n",
    "PUBs of two sizes": b"PUB t\n\x00\x00\x00\x01aPUB t\n\x00\x00\x00\x02ab",
    "PUBs to two topics": b"PUB t\n\x00\x00\x00\x01aPUB u\n\x00\x00\x00\x01a",
    "PUBs of PUBs": b"PUB t\n" + sized(b"PUB t\n\x00\x00\x00\x0b"),
    "a FIN and a RDY": b"FIN " + ID + b"\nRDY 1\n",
    "a FIN and a RDY as long": b"FIN " + ID + b"\nRDY 0000000000000001\n",
    "FINs with CRLF": b"FIN " + ID + b"\r\n",
    "FINs with a parameter": b"FIN " + ID + b" \n",
    "MPUBs of two sizes": encode_mpub(b"t", [b"a", b"ab"] * 3),
    "MPUBs of one message": encode_mpub(b"t", [b"a"]),
    "NOPs": b"NOP\n",
}


class CountedBytes(bytes):
    """Bytes that know how many of them were taken out."""

    taken_count = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.taken_count += len(found) if isinstance(found, bytes) else 1
        return found


@pytest.mark.parametrize("name", HOSTILE_UNITS)
def test_looking_ahead_for_runs_that_are_none_costs_little(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Reading ahead as far as a run may go, for every command, would take a thousand times that."""
    # The compiled one takes bytes alone, and none but those that it returns.
    monkeypatch.setattr(command_parser, "read_sized", read_sized_in_python)
    unit = HOSTILE_UNITS[name]
    count = 256 * 1024 // len(unit)
    expected = ReferenceParser(WIDE, unit).outcome().events
    data = CountedBytes(unit * count)

    outcome = observe([data], WIDE)

    assert data.taken_count < 8 * len(data)
    assert outcome.events == expected * count


def test_one_mpub_of_alternating_sizes_in_small_pieces_is_read_once() -> None:
    """Read from its start with each piece, it would not end before the test's timeout."""
    contents = [b"a", b"ab"] * 100_000
    data = encode_mpub(b"t", contents)

    outcome = observe(split(data, range(0, len(data), 64)), WIDE)

    assert outcome.events == [("MPUB", "t", *contents)]


def test_a_large_body_in_small_pieces_is_joined_once() -> None:
    """Joined with each piece, it would not end before the test's timeout."""
    body = bytes(16 << 20)
    data = b"PUB t\n" + sized(body) + b"NOP\n"
    limits = replace(WIDE, max_msg_size=len(body))

    outcome = observe(split(data, range(0, len(data), 100)), limits)

    assert outcome.events == [("PUB", "t", body), (commands.Nop(),)]


def test_the_parser_holds_no_more_than_one_body() -> None:
    limits = CommandLimits(
        max_msg_size=60_000, max_body_size=300_000, max_rdy_count=1, max_defer_ms=1
    )
    lying_mpub = b"MPUB t\n" + pack(">ii", 5, 50_000) + sized(bytes(59_000)) * 500
    parser = CommandParser(limits, AdmitAll())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(FatalClientError, match="E_BAD_BODY MPUB body too big"):
            feed_in_pieces(parser, lying_mpub, 10_000)
        held_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert held_bytes < 300_000 + 100_000


def test_the_parser_keeps_nothing_of_what_is_done() -> None:
    parser = CommandParser(WIDE, AdmitAll())
    chunk = (b"PUB t\n" + sized(bytes(1000))) * 60 + encode_mpub(b"t", [bytes(1000)] * 60)
    data = chunk * 20
    # What is found out about sizes is shared by all parsers.
    feed_in_pieces(CommandParser(WIDE, AdmitAll()), data, len(chunk))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        feed_in_pieces(parser, data, len(chunk))
        held_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert held_bytes < 20_000


def test_one_publish_like_the_last_is_found_at_once() -> None:
    parser = CommandParser(LIMITS, AdmitAll())
    first, second = (b"PUB t\n" + pack(">i", 3) + body for body in (b"abc", b"def"))
    assert parser.find_lone_publish(first) is None
    parser.feed(first)
    list(pull(parser))

    assert parser.find_lone_publish(second) == b"def"
    assert parser.pub_topic == "t"


def test_a_new_parser_expects_no_publish_and_drags_no_command() -> None:
    parser = CommandParser(LIMITS, AdmitAll())

    assert parser.find_lone_publish(b"") is None
    assert not parser.is_dragging


def test_what_continues_a_command_is_no_publish_of_its_own() -> None:
    parser = CommandParser(LIMITS, AdmitAll())
    publish = b"PUB t\n" + pack(">i", 3) + b"abc"
    parser.feed(publish)
    list(pull(parser))
    parser.feed(b"PUB t\n" + pack(">i", len(publish)))  # its body is still to come
    list(pull(parser))

    assert parser.find_lone_publish(publish) is None


def test_a_message_of_an_mpub_that_comes_in_parts_is_whole_and_leaves_no_trace() -> None:
    bodies = [b"a" * 30, b"b" * 50_000, b"c" * 20]
    mpub = encode_mpub(b"t", bodies)
    parser = CommandParser(WIDE, AdmitAll())

    # Cut off in the second body twice, and the last time in the third, with a command behind it.
    for data in (mpub[:20_000], mpub[20_000:40_000], mpub[40_000:-1]):
        parser.feed(data)
        assert commands.MultiPublish not in map(type, pull(parser))
        assert parser.is_mid_command
        assert parser.error_at_eof is not None
    parser.feed(mpub[-1:] + b"NOP\n")

    published, nop = pull(parser)
    assert isinstance(published, commands.MultiPublish)
    assert published.bodies == bodies
    assert isinstance(nop, commands.Nop)
    assert parser.error_at_eof is None
    assert not parser.is_mid_command
    assert not parser.has_more


def test_an_mpub_whose_last_message_was_cut_off_is_there_at_once() -> None:
    mpub = encode_mpub(b"t", [b"a" * 30, b"b" * 50])
    parser = CommandParser(WIDE, AdmitAll())
    parser.feed(mpub[:-10])
    list(pull(parser))

    parser.feed(mpub[-10:])

    [published] = pull(parser)
    assert isinstance(published, commands.MultiPublish)
    assert published.bodies == [b"a" * 30, b"b" * 50]
    assert not parser.is_mid_command


def test_the_start_of_an_mpub_does_not_hold_the_read_that_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_parser, "MIN_AHEAD_BYTES", 16 * 1024)
    parser = CommandParser(WIDE, AdmitAll())
    start = encode_mpub(b"t", [bytes(2000)] * 2)[:1000]
    data = (b"PUB t\n" + sized(bytes(1000))) * 200 + start
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        parser.feed(bytes(bytearray(data)))
        while parser.next_command() is not None:
            pass
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert held < 20_000
