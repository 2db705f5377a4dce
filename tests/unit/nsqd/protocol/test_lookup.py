"""The V1 codec: every reply text, and the same commands whatever the split (L-1 to L-12, L-24)."""

import itertools
import json
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.protocol.errors import FatalClientError
from nsqd.protocol.lookup import (
    MAGIC,
    MAX_IDENTIFY_BYTES,
    MAX_LINE_BYTES,
    Command,
    CommandParser,
    Identify,
    LookupdIdentity,
    LookupReplyError,
    NsqdIdentity,
    Ping,
    Register,
    ReplyParser,
    Unregister,
    check_ok,
    decode_lookupd_identity,
    encode_identify,
    encode_lookupd_identity,
    encode_ping,
    encode_register,
    encode_reply,
    encode_unregister,
)

IDENTITY = NsqdIdentity("nsqd.example", 4150, 4151, "1.3.0", "host", "zone", "region")
IDENTIFY = encode_identify(IDENTITY)


def run(chunks: Iterable[bytes]) -> tuple[list[Command], bytes | None]:
    """Feed all chunks and then EOF; return the commands and the error's text."""
    parser = CommandParser()
    commands: list[Command] = []
    try:
        for chunk in chunks:
            for command in parser.feed(chunk):
                commands.append(command)  # noqa: PERF402 - those before an error have to stay
        parser.feed_eof()
    except FatalClientError as error:
        return commands, error.frame_data
    return commands, None


def error_of(*parts: bytes) -> bytes | None:
    return run([MAGIC + b"".join(parts)])[1]


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def test_conversation_of_an_nsqd() -> None:
    data = MAGIC + encode_ping() + IDENTIFY + encode_register("t") + encode_register("t", "c")
    data += encode_unregister("t", "c") + encode_unregister("t")

    commands, error = run([data])

    assert error is None
    assert commands == [
        Ping(),
        Identify(IDENTITY),
        Register("t", None),
        Register("t", "c"),
        Unregister("t", "c"),
        Unregister("t", None),
    ]


@pytest.mark.parametrize("magic", [b"  V2", b"\0\0\0\0", b"PING", b" V1\n"])
def test_other_magic_is_refused(magic: bytes) -> None:  # L-1
    assert run([magic]) == ([], b"E_BAD_PROTOCOL")


@pytest.mark.parametrize("data", [b"", b" ", b"  V", MAGIC, MAGIC + b"PIN"])
def test_half_magic_or_line_at_eof_is_dropped_silently(data: bytes) -> None:
    assert run([data]) == ([], None)


@pytest.mark.parametrize("line", [b"PING\r\n", b"  PING\t\n", b"PING\n", b"PING x y\n"])
def test_white_space_around_a_line_is_trimmed(line: bytes) -> None:  # L-3
    assert run([MAGIC + line]) == ([Ping()], None)


def test_an_empty_channel_counts_as_none() -> None:
    # The space at the end is trimmed; the one before the third parameter leaves an empty second.
    assert run([MAGIC + IDENTIFY + b"REGISTER t  x\nREGISTER t \n"])[0][1:] == [
        Register("t", None),
        Register("t", None),
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"NONSENSE a b\n", b"E_INVALID invalid command NONSENSE"),
        (b"ping\n", b"E_INVALID invalid command ping"),
        (b"\n", b"E_INVALID invalid command "),
        (b"\xff\xfe\n", b"E_INVALID invalid command \xff\xfe"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER bad!\n", b"E_BAD_TOPIC REGISTER topic name 'bad!' is not valid"),
        (b"REGISTER  t\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"REGISTER *\n", b"E_BAD_TOPIC REGISTER topic name '*' is not valid"),
        (b"UNREGISTER \xff c\n", b"E_BAD_TOPIC UNREGISTER topic name '\xff' is not valid"),
        (b"REGISTER t c!\n", b"E_BAD_CHANNEL REGISTER channel name 'c!' is not valid"),
        (b"UNREGISTER t c!\n", b"E_BAD_CHANNEL UNREGISTER channel name 'c!' is not valid"),
        (IDENTIFY, b"E_INVALID cannot IDENTIFY again"),
    ],
)
def test_errors_of_an_identified_peer(line: bytes, text: bytes) -> None:  # L-6, L-8
    assert error_of(IDENTIFY, line) == text


@pytest.mark.parametrize("line", [b"REGISTER t\n", b"UNREGISTER t c\n", b"REGISTER\n"])
def test_registration_needs_identify(line: bytes) -> None:  # L-7
    assert error_of(line) == b"E_INVALID client must IDENTIFY"


def test_a_second_identify_is_refused_before_its_body() -> None:  # L-6
    assert error_of(IDENTIFY, b"IDENTIFY\n") == b"E_INVALID cannot IDENTIFY again"


@pytest.mark.parametrize("missing", ["broadcast_address", "tcp_port", "http_port", "version"])
@pytest.mark.parametrize("how", ["absent", "null", "empty"])
def test_identify_needs_four_fields(missing: str, how: str) -> None:  # L-5
    fields: dict[str, object] = {
        "broadcast_address": "a",
        "tcp_port": 1,
        "http_port": 2,
        "version": "v",
    }
    if how == "absent":
        del fields[missing]
    else:
        fields[missing] = None if how == "null" else type(fields[missing])()

    assert error_of(identify(json.dumps(fields).encode())) == b"E_BAD_BODY IDENTIFY missing fields"


def test_identify_ignores_unknown_fields_and_defaults_optional_ones() -> None:
    body = b'{"broadcast_address":"a","tcp_port":1,"http_port":2,"version":"v","x":[1,{"y":1.5}]}'

    assert run([MAGIC + identify(body)]) == ([Identify(NsqdIdentity("a", 1, 2, "v"))], None)


@pytest.mark.parametrize("body", [b"null", b"{}"])
def test_an_empty_identity_lacks_fields(body: bytes) -> None:
    assert error_of(identify(body)) == b"E_BAD_BODY IDENTIFY missing fields"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{nope",
        b"[]",
        b"7",
        b'{"tcp_port":"1"}',
        b'{"tcp_port":1.0}',
        b'{"tcp_port":true}',
        b'{"tcp_port":9223372036854775808}',
        b'{"tcp_port":' + b"9" * 5000 + b"}",
        b'{"version":1}',
        b'{"x":NaN}',
        b"[" * MAX_IDENTIFY_BYTES,
        b'{"x":' * (MAX_IDENTIFY_BYTES // 5),
        "{}".encode("utf-16"),
    ],
)
def test_identify_with_a_bad_body(body: bytes) -> None:
    assert error_of(identify(body)) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_identify_replaces_text_that_cannot_be_written_out_again() -> None:
    body = b'{"broadcast_address":"a\xff","tcp_port":1,"http_port":2,"version":"\\ud800"}'

    [command], error = run([MAGIC + identify(body)])

    assert error is None
    assert command == Identify(NsqdIdentity("a\ufffd", 1, 2, "\ufffd"))


def test_identify_reads_keys_as_go_does() -> None:
    body = (
        b'{"Broadcast_Address":"x","BROADCAST_ADDRESS":"a","TCP_Port":1,"http_port":2,'
        b'"Version":"v","version":null,"ho\xc5\xbftname":"h"}'
    )

    assert run([MAGIC + identify(body)]) == ([Identify(NsqdIdentity("a", 1, 2, "v", "h"))], None)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (-1, b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (-(2**31), b"E_BAD_BODY IDENTIFY invalid body size -2147483648"),
        (MAX_IDENTIFY_BYTES + 1, b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"),
        (2**31 - 1, b"E_BAD_BODY IDENTIFY body too big 2147483647 > 65536"),
    ],
)
def test_identify_with_a_bad_size_is_refused_at_once(size: int, text: bytes) -> None:  # L-24
    assert error_of(b"IDENTIFY\n", struct.pack(">i", size)) == text


def test_identify_of_the_largest_size_is_taken() -> None:
    body = IDENTIFY[len(b"IDENTIFY\n") + 4 :]
    body += b" " * (MAX_IDENTIFY_BYTES - len(body))

    assert run([MAGIC + identify(body)]) == ([Identify(IDENTITY)], None)


def test_eof_within_an_identify_body_is_answered() -> None:
    assert error_of(b"IDENTIFY\n\0\0") == b"E_BAD_BODY IDENTIFY failed to read body size"
    assert error_of(b"IDENTIFY\n\0\0\0\2{") == b"E_BAD_BODY IDENTIFY failed to read body"


def test_a_line_has_a_longest_length() -> None:
    text = b"E_INVALID command line is longer than 16384 bytes"
    longest = b"PING".ljust(MAX_LINE_BYTES - 1) + b"\n"

    assert run([MAGIC + longest]) == ([Ping()], None)
    assert error_of(b" " + longest) == text
    assert error_of(b"x" * MAX_LINE_BYTES) == text
    assert error_of(b"x" * (MAX_LINE_BYTES - 1)) is None


def test_a_parser_takes_nothing_after_an_error() -> None:
    parser = CommandParser()
    with pytest.raises(FatalClientError):
        list(parser.feed(MAGIC + b"NOPE\nPING\n"))

    assert list(parser.feed(b"PING\n")) == []
    assert not parser.is_mid_command


def test_mid_command_means_that_the_peer_owes_bytes() -> None:
    parser = CommandParser()
    steps = [
        (b"", True),
        (b"  V", True),
        (b"1", False),
        (b"PIN", True),
        (b"G\n", False),
        (b"IDENTIFY\n", True),
        (IDENTIFY[9:-1], True),
        (IDENTIFY[-1:], False),
        (b"PING\nP", True),
    ]

    for data, owes in steps:
        list(parser.feed(data))
        assert parser.is_mid_command is owes, data


names = st.text("abcXYZ019._-", min_size=1, max_size=64)
lines = st.one_of(
    st.just(encode_ping()),
    st.just(IDENTIFY),
    st.builds(encode_register, names, st.none() | names),
    st.builds(encode_unregister, names, st.none() | names),
    st.just(b"REGISTER t bad!\r\n"),
    st.just(b"IDENTIFY\n\xff\xff\xff\xff"),
    st.just(b"IDENTIFY\n\0\0\0\7{"),
    st.binary(max_size=20),
    st.integers(MAX_LINE_BYTES - 2, MAX_LINE_BYTES + 1).map(lambda n: b"\t" * n + b"\n"),
)
streams = st.builds(
    lambda head, rest: head + b"".join(rest),
    st.sampled_from([MAGIC, MAGIC + IDENTIFY, b"  V", b""]),
    st.lists(lines, max_size=6),
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(streams, st.lists(st.integers(0, 2**16), max_size=12))
def test_any_split_gives_the_same_commands_and_error(data: bytes, cuts: list[int]) -> None:
    assert run(split(data, cuts)) == run([data])


@given(streams.filter(lambda data: len(data) < 2000))
def test_single_bytes_give_the_same_commands_and_error(data: bytes) -> None:
    assert run(data[i : i + 1] for i in range(len(data))) == run([data])


@given(st.binary(max_size=200))
def test_garbage_ends_in_commands_or_a_client_error(data: bytes) -> None:
    run([MAGIC + IDENTIFY + data])
    run([MAGIC + b"IDENTIFY\n" + data])


# The client's half.


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 400), max_size=9))
def test_any_split_gives_the_same_replies(replies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(encode_reply, replies))
    parser = ReplyParser()

    assert [reply for chunk in split(data, cuts) for reply in parser.feed(chunk)] == replies


@pytest.mark.parametrize("size", [-1, 11, 2**31 - 1])
def test_a_reply_of_a_bad_size_is_refused_before_it_is_read(size: int) -> None:
    parser = ReplyParser(max_reply_bytes=10)
    assert list(parser.feed(encode_reply(b"x" * 10))) == [b"x" * 10]

    with pytest.raises(LookupReplyError, match=str(size)):
        list(parser.feed(struct.pack(">i", size)))


def test_identify_reply_round_trip() -> None:  # L-4
    identity = LookupdIdentity("lookup.example", "höst", 4161, 4160, "1.3.0")

    [reply] = ReplyParser().feed(encode_lookupd_identity(identity))

    assert sorted(json.loads(reply)) == [
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "version",
    ]
    assert decode_lookupd_identity(reply) == identity


def test_identify_sends_seven_keys() -> None:  # N-1
    assert sorted(json.loads(IDENTIFY[13:])) == [
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "topology_region",
        "topology_zone",
        "version",
    ]


def test_identify_reply_of_an_old_nsqlookupd_may_lack_fields() -> None:
    assert decode_lookupd_identity(b"{}") == LookupdIdentity("", "", 0, 0, "")


@pytest.mark.parametrize("reply", [b"E_INVALID", b"OK", b"", b"[]", b'{"http_port":"x"}'])
def test_identify_reply_that_is_no_identity(reply: bytes) -> None:
    with pytest.raises(LookupReplyError):
        decode_lookupd_identity(reply)


def test_check_ok_tells_what_was_answered() -> None:
    check_ok(b"OK")
    with pytest.raises(LookupReplyError, match="E_BAD_TOPIC no"):
        check_ok(b"E_BAD_TOPIC no")


def test_a_reply_may_have_five_mebibytes_and_no_more() -> None:
    limit = 5 << 20

    assert list(ReplyParser().feed(struct.pack(">i", limit))) == []
    with pytest.raises(LookupReplyError):
        list(ReplyParser().feed(struct.pack(">i", limit + 1)))
