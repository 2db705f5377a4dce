"""Commands one by one: their grammar, their errors in nsqd's order, and what EOF says."""

from struct import pack

import pytest

from nsqd.protocol import commands
from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.command_parser import (
    MAX_LINE_BYTES,
    MAX_RUN_BYTES,
    MAX_RUN_COUNT,
    CommandParser,
    LineTooLongError,
)
from nsqd.protocol.commands import Admission, ClientState
from nsqd.protocol.errors import FatalClientError
from tests.support.reference_parser import AdmitAll, Event, flatten, pull

LIMITS = CommandLimits(max_msg_size=100, max_body_size=1000, max_rdy_count=2500, max_defer_ms=3600)
WIDE = CommandLimits(
    max_msg_size=1 << 20, max_body_size=5 << 20, max_rdy_count=2500, max_defer_ms=3600
)
ID = b"0123456789abcdef"
LONG = b"x" * 65


def make_parser(admission: Admission | None = None) -> CommandParser:
    return CommandParser(LIMITS, admission or AdmitAll())


def parse(data: bytes, admission: Admission | None = None) -> list[Event]:
    parser = make_parser(admission)
    parser.feed(data)
    return [event for command in pull(parser) for event in flatten(command)]


def parse_to_error(parser: CommandParser) -> tuple[list[Event], bytes]:
    events: list[Event] = []
    try:
        for command in pull(parser):
            events += flatten(command)
    except FatalClientError as error:
        return events, error.frame_data
    raise AssertionError("no error")


def fail(data: bytes, admission: Admission | None = None) -> bytes:
    with pytest.raises(FatalClientError) as caught:
        parse(data, admission)
    return caught.value.frame_data


def error_at_eof(data: bytes) -> bytes | None:
    parser = make_parser()
    parser.feed(data)
    list(pull(parser))
    error = parser.error_at_eof
    return None if error is None else error.frame_data


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def mpub(*bodies: bytes, size: int | None = None, count: int | None = None) -> bytes:
    content = pack(">i", len(bodies) if count is None else count) + b"".join(map(sized, bodies))
    return b"MPUB t\n" + pack(">i", len(content) if size is None else size) + content


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"NOP\n", (commands.Nop(),)),
        (b"NOP\r\n", (commands.Nop(),)),
        (b"NOP with parameters\n", (commands.Nop(),)),
        (b"CLS\n", (commands.StartClose(),)),
        (b"SUB t c\n", (commands.Subscribe("t", "c"),)),
        (b"SUB t#ephemeral c#ephemeral\r\n", (commands.Subscribe("t#ephemeral", "c#ephemeral"),)),
        (b"SUB t c more\n", (commands.Subscribe("t", "c"),)),
        (b"RDY\n", (commands.Ready(1),)),
        (b"RDY 0\n", (commands.Ready(0),)),
        (b"RDY \n", (commands.Ready(0),)),
        (b"RDY 2500\n", (commands.Ready(2500),)),
        (b"RDY 007 8\n", (commands.Ready(7),)),
        (b"FIN " + ID + b"\n", ("FIN", ID)),
        (b"FIN " + ID + b"\r\n", ("FIN", ID)),
        (b"FIN " + ID + b" more\n", ("FIN", ID)),
        (b"FIN \x00\xff\t\r345678 \n", None),
        (b"TOUCH " + ID + b"\n", (commands.Touch(ID),)),
        (b"REQ " + ID + b" 0\n", ("REQ", ID, 0)),
        (b"REQ " + ID + b" \n", ("REQ", ID, 0)),
        (b"REQ " + ID + b" 99999999\n", ("REQ", ID, 99999999)),
        (b"PUB t\n" + sized(b"a"), ("PUB", "t", b"a")),
        (b"PUB t\r\n" + sized(b"a"), ("PUB", "t", b"a")),
        (b"PUB t more\n" + sized(b"a"), ("PUB", "t", b"a")),
        (b"PUB t\n" + sized(b"x" * 100), ("PUB", "t", b"x" * 100)),
        (b"DPUB t 3600\n" + sized(b"a"), ("DPUB", "t", 3600, b"a")),
        (b"DPUB t \n" + sized(b"a"), ("DPUB", "t", 0, b"a")),
        (mpub(b"a", b"bc"), ("MPUB", "t", b"a", b"bc")),
        (b"IDENTIFY\n" + sized(b"{}"), (commands.Identify(b"{}"),)),
        (b"IDENTIFY more\n" + sized(b"{}"), (commands.Identify(b"{}"),)),
        (b"AUTH\n" + sized(b"secret"), (commands.Auth(b"secret"),)),
    ],
)
def test_a_command_is_understood(data: bytes, event: Event | None) -> None:
    # W-7, W-15, W-65, W-76
    if event is None:
        assert fail(data) == b"E_INVALID invalid message ID"
    else:
        assert parse(data) == [event]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        # W-8 to W-11: the line
        (b"nop\n", b"E_INVALID invalid command nop"),
        (b"\n", b"E_INVALID invalid command "),
        (b"\r\n", b"E_INVALID invalid command "),
        (b" NOP\n", b"E_INVALID invalid command "),
        (b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
        (b"NOP\tx\n", b"E_INVALID invalid command NOP\tx"),
        (b"\xff\xfe\x00 x\n", b"E_INVALID invalid command \xff\xfe\x00"),
        (b"PUB a\r\r\n", b'E_BAD_TOPIC PUB topic name "a\\r" is not valid'),
        (b"PUB  t\n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
        # W-51 to W-54: PUB
        (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (b"PUB t%1\n", b'E_BAD_TOPIC PUB topic name "t%1" is not valid'),
        (b"PUB t\xff\n", b'E_BAD_TOPIC PUB topic name "t\\xff" is not valid'),
        (
            b"PUB " + b"x" * 65 + b"\n",
            b'E_BAD_TOPIC PUB topic name "%b" is not valid' % (b"x" * 65),
        ),
        (b"PUB t\n" + pack(">i", 0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + pack(">i", -1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n" + pack(">i", 101), b"E_BAD_MESSAGE PUB message too big 101 > 100"),
        # W-64 to W-66: DPUB
        (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB t% x\n", b'E_BAD_TOPIC DPUB topic name "t%" is not valid'),
        (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t abc\n", b"E_INVALID DPUB could not parse timeout abc"),
        (b"DPUB t 3601\n", b"E_INVALID DPUB timeout 3601 out of range 0-3600"),
        (b"DPUB t 1\n" + pack(">i", 0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 1\n" + pack(">i", 101), b"E_BAD_MESSAGE DPUB message too big 101 > 100"),
        # W-57 to W-61: MPUB
        (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
        (b"MPUB t%\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t%" is not valid'),
        (b"MPUB t\n" + pack(">i", 0), b"E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n" + pack(">i", -5), b"E_BAD_BODY MPUB invalid body size -5"),
        (b"MPUB t\n" + pack(">i", 1001), b"E_BAD_BODY MPUB body too big 1001 > 1000"),
        (b"MPUB t\n" + pack(">ii", 9, 0), b"E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + pack(">ii", 9, -1), b"E_BAD_BODY MPUB invalid message count -1"),
        (b"MPUB t\n" + pack(">ii", 9, 200), b"E_BAD_BODY MPUB invalid message count 200"),
        (mpub(b""), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (mpub(b"a", b"b", b""), b"E_BAD_MESSAGE MPUB invalid message(2) body size 0"),
        (
            b"MPUB t\n" + pack(">iiii", 99, 2, -2, 0),
            b"E_BAD_MESSAGE MPUB invalid message(0) body size -2",
        ),
        (mpub(b"a", b"x" * 101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
        # W-71, W-72: SUB
        (b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB t% c%\n", b'E_BAD_TOPIC SUB topic name "t%" is not valid'),
        (b"SUB t c%\n", b'E_BAD_CHANNEL SUB channel name "c%" is not valid'),
        # W-78, W-79: RDY
        (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
        (b"RDY +1\n", b"E_INVALID RDY could not parse count +1"),
        (b"RDY 1_0\n", b"E_INVALID RDY could not parse count 1_0"),
        (b"RDY \xff\n", b"E_INVALID RDY could not parse count \xff"),
        # W-86, W-87, W-93, W-94: FIN, REQ, TOUCH
        (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
        (b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
        (b"REQ " + ID + b"\n", b"E_INVALID REQ insufficient number of params"),
        (b"FIN 0123456789abcde\n", b"E_INVALID invalid message ID"),
        (b"FIN 0123456789abcdef0\n", b"E_INVALID invalid message ID"),
        (b"FIN  123456789abcdef\n", b"E_INVALID invalid message ID"),
        (b"FIN 0123456789abcde\r\n", b"E_INVALID invalid message ID"),
        (b"TOUCH x\n", b"E_INVALID invalid message ID"),
        (b"REQ x -1\n", b"E_INVALID invalid message ID"),
        (b"REQ " + ID + b" -1\n", b"E_INVALID REQ could not parse timeout -1"),
        (b"REQ " + ID + b" abc\n", b"E_INVALID REQ could not parse timeout abc"),
        # W-25, W-26, A-3: IDENTIFY and AUTH look at "too big" first, unlike MPUB
        (b"IDENTIFY\n" + pack(">i", 0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n" + pack(">i", -1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"IDENTIFY\n" + pack(">i", 1001), b"E_BAD_BODY IDENTIFY body too big 1001 > 1000"),
        (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
        (b"AUTH \n", b"E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n" + pack(">i", 0), b"E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n" + pack(">i", 1001), b"E_BAD_BODY AUTH body too big 1001 > 1000"),
    ],
)
def test_a_wrong_command_fails_before_its_body_is_there(data: bytes, text: bytes) -> None:
    assert fail(data) == text


def test_good_commands_come_before_the_error() -> None:
    parser = make_parser()
    parser.feed(b"PUB t\n" + sized(b"a") + b"FIN " + ID + b"\n" + b"NOP\n" + b"BAD\n" + b"NOP\n")

    events, error = parse_to_error(parser)

    assert events == [("PUB", "t", b"a"), ("FIN", ID), (commands.Nop(),)]
    assert error.startswith(b"E_INVALID invalid command BAD")


@pytest.mark.parametrize("size", [0, -1, 101])
def test_a_run_of_publishes_ends_before_a_wrong_size(size: int) -> None:
    parser = make_parser()
    parser.feed((b"PUB t\n" + sized(b"ab")) * 20 + b"PUB t\n" + pack(">i", size) + b"rest")

    events, error = parse_to_error(parser)

    assert events == [("PUB", "t", b"ab")] * 20
    assert error.startswith(b"E_BAD_MESSAGE PUB")


def test_huge_numbers_are_refused_without_being_converted() -> None:
    digits = b"9" * 16000

    assert fail(b"RDY " + digits + b"\n") == b"E_INVALID RDY could not parse count " + digits


def test_the_longest_line_is_processed_and_one_byte_more_is_not() -> None:
    # W-12
    longest = b"NOP " + b"x" * (MAX_LINE_BYTES - 5) + b"\n"
    assert len(longest) == MAX_LINE_BYTES == 16384

    assert parse(longest) == [(commands.Nop(),)]

    with pytest.raises(LineTooLongError):
        parse(b"x" + longest)


def test_a_line_is_too_long_even_if_its_end_never_comes() -> None:
    # W-12
    parser = make_parser()
    parser.feed(b"NOP\n" + b"x" * (MAX_LINE_BYTES - 1))
    assert list(pull(parser)) == [commands.Nop()]

    parser.feed(b"x")
    with pytest.raises(LineTooLongError):
        list(pull(parser))


@pytest.mark.parametrize("size", [1, 12, 1000])
def test_mpub_takes_its_extent_from_count_and_sizes_not_from_its_outer_size(size: int) -> None:
    # W-62
    data = mpub(b"one", b"three", size=size) + b"NOP\n"

    assert parse(data) == [("MPUB", "t", b"one", b"three"), (commands.Nop(),)]


@pytest.mark.parametrize("sizes", [[100], [100, 99], [7]])
def test_mpub_with_a_lying_outer_size_cannot_exceed_max_body_size(sizes: list[int]) -> None:
    bodies = [b"x" * sizes[index % len(sizes)] for index in range(199)]
    extent = 4
    for body in bodies:
        extent += 4 + len(body)
        if extent > 1000:
            break

    assert (
        fail(mpub(*bodies, size=1000)) == f"E_BAD_BODY MPUB body too big {extent} > 1000".encode()
    )


def test_mpub_of_exactly_max_body_size_is_taken() -> None:
    bodies = [b"x" * 79] * 12
    data = mpub(*bodies)
    assert len(data) == len(b"MPUB t\n") + 4 + 1000

    assert parse(data) == [("MPUB", "t", *bodies)]


def test_publishes_in_a_run_keep_their_topics() -> None:
    data = b"".join(
        b"PUB %b\n" % topic + sized(body)
        for topic, body in [(b"t", b"a"), (b"t", b"b"), (b"u", b"c"), (b"t", b"d"), (b"t", b"ee")]
    )

    assert parse(data) == [
        ("PUB", "t", b"a"),
        ("PUB", "t", b"b"),
        ("PUB", "u", b"c"),
        ("PUB", "t", b"d"),
        ("PUB", "t", b"ee"),
    ]


def test_bodies_that_look_like_commands_are_bodies() -> None:
    tricky = [
        b"PUB t\n\x00\x00\x00\x01a",
        b"PUB t\n\x00\x00\x00\x0b",
        b"NOP\nNOP\n" + b"x" * 3,
        b"FIN " + ID[:7],
    ]
    data = b"".join(b"PUB t\n" + sized(body) for body in tricky) * 10 + mpub(*tricky)

    assert parse(data) == [("PUB", "t", body) for body in tricky] * 10 + [("MPUB", "t", *tricky)]


def test_pipelined_publishes_are_each_answered() -> None:
    # W-14
    parser = make_parser()
    parser.feed(b"".join(b"PUB t\n" + sized(b"%03d" % number) for number in range(1000)))

    runs = list(pull(parser))

    assert sum(len(run.bodies) for run in runs if isinstance(run, commands.Publish)) == 1000
    assert len(runs) < 50


def test_pipelined_deferred_publishes_and_requeues_are_few_commands() -> None:
    numbers = range(1000)
    dpubs = b"".join(b"DPUB t 7\n" + sized(b"%03d" % number) for number in numbers)
    reqs = b"".join(b"REQ %016d 0\n" % number for number in numbers)
    parser = make_parser()
    parser.feed(dpubs + reqs)

    runs = list(pull(parser))

    assert [event for run in runs for event in flatten(run)] == [
        *[("DPUB", "t", 7, b"%03d" % number) for number in numbers],
        *[("REQ", b"%016d" % number, 0) for number in numbers],
    ]
    assert len(runs) < 50


def test_a_deferred_publish_and_a_publish_are_not_taken_for_each_other() -> None:
    same = b"".join(
        [
            *[b"PUB t\n" + sized(b"a")] * 3,
            *[b"DPUB t 5\n" + sized(b"a")] * 3,
            *[b"DPUB t 6\n" + sized(b"a")] * 3,
            b"PUB t\n" + sized(b"a"),
        ]
    )

    assert parse(same) == [
        *[("PUB", "t", b"a")] * 3,
        *[("DPUB", "t", 5, b"a")] * 3,
        *[("DPUB", "t", 6, b"a")] * 3,
        ("PUB", "t", b"a"),
    ]


def test_a_lone_deferred_publish_is_no_lone_publish() -> None:
    parser = make_parser()
    dpub = b"DPUB t 5\n" + sized(b"a")
    parser.feed(dpub)
    list(pull(parser))

    assert parser.find_lone_publish(dpub) is None


def test_a_bad_deferred_publish_in_a_run_is_refused_by_its_own_name() -> None:
    parser = make_parser()
    parser.feed((b"DPUB t 5\n" + sized(b"a")) * 3 + b"DPUB t 5\n" + pack(">i", 0))

    events, error = parse_to_error(parser)

    assert events == [("DPUB", "t", 5, b"a")] * 3
    assert error.startswith(b"E_BAD_MESSAGE DPUB invalid message body size 0")


def test_requeues_with_other_delays_are_not_taken_for_each_other() -> None:
    delays = [b"0", b"0", b"5", b"0", b"5", b"5", b"10", b"0"]
    data = b"".join(b"REQ " + ID + b" " + delay + b"\n" for delay in delays)

    assert parse(data) == [("REQ", ID, int(delay)) for delay in delays]


def test_a_run_of_requeues_is_refused_before_a_subscription() -> None:
    parser = make_parser()
    req = b"REQ " + ID + b" 0\n"
    parser.feed(req)
    list(pull(parser))
    parser.admission = Admission()
    parser.feed(req * 3)

    _, error = parse_to_error(parser)

    assert error.startswith(b"E_INVALID cannot REQ in current state")


def run_lengths(*reads: bytes) -> list[int]:
    parser = CommandParser(WIDE, AdmitAll())
    lengths = []
    for data in reads:
        parser.feed(data)
        for run in pull(parser):
            if isinstance(run, commands.Publish):
                lengths.append(len(run.bodies))
            elif isinstance(run, commands.Finish):
                lengths.append(len(run.ids))
    return lengths


def test_the_parser_looks_further_ahead_with_every_run_it_finds() -> None:
    # The first PUB is read by its line.
    assert run_lengths((b"PUB t\n" + sized(b"abc")) * 100) == [1, 8, 16, 32, 43]
    assert run_lengths((b"FIN " + ID + b"\n") * 100) == [8, 16, 32, 44]


def test_the_end_of_a_read_does_not_bring_the_look_ahead_back() -> None:
    publishes = b"NOP\n" * 10 + (b"PUB t\n" + sized(b"abc")) * 100
    finishes = b"NOP\n" * 10 + (b"FIN " + ID + b"\n") * 100

    assert run_lengths(publishes, publishes) == [1, 8, 16, 32, 43, 86, 14]
    assert run_lengths(finishes, finishes) == [8, 16, 32, 44, 88, 12]


def test_what_is_no_run_brings_the_look_ahead_back_to_its_minimum() -> None:
    same, other = (b"PUB t\n" + sized(body) for body in (b"abc", b"abcd"))
    mixed = (same + other) * 2 + b"NOP\n"  # four PUBs that are read one by one
    finish = b"FIN " + ID + b"\n"
    rows = finish * 2 + b"RDY 0000000000000001\n"  # rows of 21 bytes, of which one is no FIN

    assert run_lengths(same * 57 + mixed + same * 30) == [1, 8, 16, 32, 4, 8, 16, 6]
    assert run_lengths(finish * 56 + rows + finish * 30) == [8, 16, 32, 1, 1, 8, 16, 6]


def test_a_run_of_publishes_is_bounded_in_bytes() -> None:
    body = bytes(MAX_RUN_BYTES // 10)
    data = (b"PUB t\n" + sized(body)) * 30

    assert run_lengths(data) == [1, 8, 9, 9, 3]


def test_a_run_of_finishes_is_bounded() -> None:
    lengths = run_lengths((b"FIN " + ID + b"\n") * 20_000)

    assert max(lengths) == MAX_RUN_COUNT
    assert sum(lengths) == 20_000


def test_a_run_of_fins_is_few_commands() -> None:
    parser = make_parser()
    parser.feed(b"".join(b"FIN %016d\n" % number for number in range(5000)))

    runs = [run for run in pull(parser) if isinstance(run, commands.Finish)]

    assert [message_id for run in runs for message_id in run.ids] == [
        b"%016d" % number for number in range(5000)
    ]
    assert len(runs) < 50


@pytest.mark.parametrize(
    "row",
    [
        b"FIN 0123456\n89abcdef\n",
        b"FIN \n123456789abcdef\n",
        b"FIN 0123456789abcde\r\n"[:20] + b"\n",
        b"FIN 01234 6789abcdef\n",
    ],
)
def test_a_row_of_21_bytes_that_is_no_fin_ends_the_run(row: bytes) -> None:
    good = b"FIN " + ID + b"\n"
    assert len(row) == len(good) == 21
    parser = make_parser()
    parser.feed(good * 3 + row + good)

    events, error = parse_to_error(parser)

    assert events == [("FIN", ID)] * 3
    assert error.startswith(b"E_INVALID invalid message ID")


def test_an_id_may_hold_a_carriage_return() -> None:
    odd = b"0123456\r89abcdef"

    assert parse((b"FIN " + odd + b"\n") * 3) == [("FIN", odd)] * 3


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", None),
        (b"NOP\n", None),
        (b"NO", None),
        (b"PUB t", None),
        (b"FIN " + ID, None),
        (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00\x00", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00\x00\x02a", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"PUB t\n\x00\x00\x00\x01aPUB t", None),
        (
            b"PUB t\n\x00\x00\x00\x01aPUB t\n\x00",
            b"E_BAD_MESSAGE PUB failed to read message body size",
        ),
        (
            b"PUB t\n\x00\x00\x00\x01aPUB t\n\x00\x00\x00\x01",
            b"E_BAD_MESSAGE PUB failed to read message body",
        ),
        (b"DPUB t 1\n", b"E_BAD_MESSAGE DPUB failed to read message body size"),
        (b"DPUB t 1\n\x00\x00\x00\x02a", b"E_BAD_MESSAGE DPUB failed to read message body"),
        (b"MPUB t\n\x00", b"E_BAD_BODY MPUB failed to read body size"),
        (mpub(b"a")[:11], b"E_BAD_BODY MPUB failed to read message count"),
        (mpub(b"a", b"b")[:15], b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (mpub(b"a", b"b")[:-2], b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (mpub(b"a", b"b")[:-1], b"E_BAD_MESSAGE MPUB failed to read message body"),
        (mpub(b"a", b"b"), None),
        (b"IDENTIFY\n\x00", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\x00\x00\x00\x02{", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n\x00", b"E_BAD_BODY AUTH failed to read body size"),
        (b"AUTH\n\x00\x00\x00\x02x", b"E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_a_client_that_stops_is_told_so_only_in_the_middle_of_a_body(
    data: bytes, text: bytes | None
) -> None:
    # W-13, W-55, W-113
    assert error_at_eof(data) == text


def test_nothing_is_said_at_eof_once_an_mpub_that_came_in_pieces_is_complete() -> None:
    data = mpub(b"a", b"bcd", b"ef")
    parser = make_parser()
    done: list[commands.Command] = []
    for index in range(len(data)):
        parser.feed(data[index : index + 1])
        done += pull(parser)

        assert (parser.error_at_eof is None) == (index < 6 or index == len(data) - 1)

    assert [event for command in done for event in flatten(command)] == [
        ("MPUB", "t", b"a", b"bcd", b"ef")
    ]


@pytest.mark.parametrize(
    ("verbs", "admission", "suffix"),
    [
        ((b"IDENTIFY", b"AUTH", b"SUB", b"CLS"), Admission(ClientState.CLOSING), b""),
        ((b"RDY", b"FIN", b"REQ", b"TOUCH", b"CLS"), Admission(ClientState.INIT), b""),
        ((b"PUB", b"MPUB", b"SUB", b"XYZ"), Admission(is_tls_missing=True), b" (TLS required)"),
    ],
)
def test_state_errors_come_before_parameter_errors(
    verbs: tuple[bytes, ...], admission: Admission, suffix: bytes
) -> None:
    # W-41, W-73, W-80, W-89, W-127
    for verb in verbs:
        text = b"E_INVALID cannot " + verb + b" in current state" + suffix

        assert fail(verb + b" % % %\n", admission) == text


def test_a_run_of_fins_needs_a_subscription() -> None:
    text = fail((b"FIN " + ID + b"\n") * 5, Admission(ClientState.INIT))

    assert text == b"E_INVALID cannot FIN in current state"


def test_rdy_after_cls_is_skipped_unchecked() -> None:
    # W-103
    data = b"RDY x\nRDY 99999\nNOP\n"

    assert parse(data, Admission(ClientState.CLOSING)) == [(commands.Nop(),)]


def test_an_admission_holds_from_the_next_command_on() -> None:
    parser = make_parser(Admission())
    parser.feed(b"SUB t c\nRDY 1\nCLS\nRDY 2\nNOP\n")

    assert parser.next_command() == commands.Subscribe("t", "c")
    parser.admission = Admission(ClientState.SUBSCRIBED)
    assert parser.next_command() == commands.Ready(1)
    assert parser.next_command() == commands.StartClose()
    parser.admission = Admission(ClientState.CLOSING)
    assert list(pull(parser)) == [commands.Progress(), commands.Nop()]


def test_an_mpub_is_announced_before_its_body_is_there() -> None:
    parser = make_parser()
    parser.feed(b"MPUB secret\n")

    assert list(pull(parser)) == [commands.MultiPublishBegun("secret")]

    parser.feed(mpub(b"a").removeprefix(b"MPUB t\n"))
    [command] = pull(parser)
    assert list(flatten(command)) == [("MPUB", "secret", b"a")]
    assert fail(b"MPUB %\n").startswith(b"E_BAD_TOPIC")


def test_only_an_mpub_with_another_line_is_announced_again() -> None:
    other = mpub(b"a").replace(b"MPUB t\n", b"MPUB u\n")
    parser = make_parser()
    parser.feed(mpub(b"a") * 3 + other + mpub(b"a"))

    kinds = [type(command).__name__ for command in pull(parser)]

    begun, complete = "MultiPublishBegun", "MultiPublish"
    assert kinds == [begun, complete, complete, complete, begun, complete, begun, complete]


def test_an_announced_mpub_is_still_dragging() -> None:
    """A client that sends a byte now and then has not said anything before its command is whole."""
    parser = make_parser()
    for index, byte in enumerate(data := mpub(b"a", b"b")):
        parser.feed(bytes([byte]))
        list(pull(parser))

        assert parser.is_dragging == (0 < index < len(data) - 1)


def test_an_ignored_command_is_not_dragging() -> None:
    parser = make_parser(Admission(ClientState.CLOSING))
    notes = []
    for part in (b"RDY 1", b"2", b"3\n"):
        parser.feed(part)
        list(pull(parser))
        notes.append(parser.is_dragging)

    assert notes == [False, True, False]


def test_release_rest_gives_up_what_was_not_parsed() -> None:
    parser = make_parser()
    parser.feed(b"IDENTIFY\n" + sized(b"{}") + b"\x16\x03\x01 the rest")
    first = parser.next_command()

    assert first == commands.Identify(b"{}")
    assert parser.release_rest() == b"\x16\x03\x01 the rest"
    assert list(pull(parser)) == []
    assert parser.release_rest() == b""

    parser.feed(b"NOP\n")
    assert list(pull(parser)) == [commands.Nop()]


def test_release_rest_gives_up_an_incomplete_command() -> None:
    parser = make_parser()
    for part in (b"NOP\nPUB t\n", b"\x00\x00", b"\x00"):
        parser.feed(part)
        list(pull(parser))

    assert parser.release_rest() == b"PUB t\n\x00\x00\x00"
    assert list(pull(parser)) == []
    assert parser.release_rest() == b""


def test_release_rest_gives_up_the_parts_of_a_large_body() -> None:
    parser = make_parser()
    parts = [b"PUB t\n" + (90).to_bytes(4, "big") + b"a", b"b" * 30, b"c" * 30]
    for part in parts:
        parser.feed(part)
        list(pull(parser))

    assert parser.release_rest() == b"".join(parts)
    assert parser.release_rest() == b""


def test_commands_stop_and_go_on_between_feeds() -> None:
    parser = make_parser()
    parser.feed(b"RDY 1\nRDY 2\nRD")
    assert parser.next_command() == commands.Ready(1)

    parser.feed(b"Y 3\n")

    assert list(pull(parser)) == [commands.Ready(2), commands.Ready(3)]
