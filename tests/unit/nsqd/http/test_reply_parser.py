import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.http.reply_parser import MAX_HEADER_COUNT, BadReplyError, Reply, ReplyParser

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@given(st.lists(st.integers(1, 60), max_size=12))
def test_the_parser_does_not_care_where_the_input_is_cut(sizes: list[int]) -> None:
    rest = b"HTTP/1.1 100 \r\n\r\n" + OK.replace(b"\r\n", b"\r\nX: 1\r\nX: 2\r\n", 1)
    parser = ReplyParser(max_head_bytes=1000, max_body_bytes=2)

    for size in [*sizes, len(rest)]:
        if rest:
            parser.feed(rest[:size])
            rest = rest[size:]

    reply = parser.reply()
    assert (reply.body, reply.headers[b"x"], parser.is_kept_alive) == (b"ok", b"1, 2", True)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_any_input_is_a_reply_or_an_error(noise: bytes, kept: int) -> None:
    parser = ReplyParser(max_head_bytes=1000, max_body_bytes=100)

    try:
        parser.feed(OK[:kept] + noise)
        parser.feed_eof()
    except BadReplyError:
        return
    finally:
        parser.close()

    if parser.is_complete:
        assert len(parser.reply().body) <= 100


def test_a_fault_of_the_parser_itself_is_not_blamed_on_the_server() -> None:
    class BrokenParser(ReplyParser):
        def on_header(self, name: bytes, value: bytes) -> None:
            raise ZeroDivisionError

    parser = BrokenParser(max_head_bytes=1000, max_body_bytes=100)

    with pytest.raises(ZeroDivisionError):
        parser.feed(OK)
    parser.close()


@pytest.mark.parametrize("status", [b"100", b"103", b"199"])
def test_the_reply_follows_an_interim_one(status: bytes) -> None:
    parser = ReplyParser(max_head_bytes=1000, max_body_bytes=100)

    parser.feed(b"HTTP/1.1 " + status + b" X\r\nA: b\r\n\r\n")
    assert not parser.is_complete
    parser.feed(OK)

    reply = parser.reply()
    assert (reply.status, reply.body, b"a" in reply.headers) == (200, b"ok", False)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = ReplyParser(max_head_bytes=1000, max_body_bytes=2)
    parser.feed(b"HTTP/1.1 200 OK\r\n\r\nok")
    assert not parser.is_complete

    assert parser.feed_eof()

    assert (parser.reply().body, parser.is_kept_alive) == (b"ok", False)


@pytest.mark.parametrize("body", [b"", b"no", b"NaN", b"[" * 100_000, b"9" * 5_000])
def test_a_body_that_is_no_json(body: bytes) -> None:
    with pytest.raises(BadReplyError, match="not JSON"):
        Reply(200, {}, body).json()


def test_a_body_that_is_json() -> None:
    assert Reply(200, {}, b'{"a":"\xff"}').json() == {"a": "\ufffd"}


UPGRADE = b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"


def read(data: bytes, *, max_head_bytes: int = 30_000, max_body_bytes: int = 100) -> str:
    """Return how a reply ends, in one read and then the end of the connection."""
    parser = ReplyParser(max_head_bytes=max_head_bytes, max_body_bytes=max_body_bytes)
    try:
        parser.feed(data)
    except BadReplyError as error:
        return str(error)
    finally:
        parser.close()
    kind = "kept" if parser.is_kept_alive else "closed"
    return f"{parser.reply().status} {kind}" if parser.feed_eof() else "no end"


def head(*lines: bytes, status: bytes = b"200") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status + b" X", *lines, b"", b""])


@pytest.mark.parametrize("size_bytes", [40, 16 * 1024, 16 * 1024 + 1, 20_000])
def test_a_head_may_have_as_many_bytes_as_is_said(size_bytes: int) -> None:
    short = head(b"Content-Length: 0", b"A: ")
    data = short.replace(b"A: ", b"A: " + b"x" * (size_bytes - len(short)))

    assert len(data) == max(size_bytes, len(short))
    assert read(data, max_head_bytes=len(data)) == "200 kept"
    refusal = f"a head of more than {len(data) - 1} bytes"
    assert read(data, max_head_bytes=len(data) - 1) == refusal
    # Interim replies and all that stands around chunks are parts of it, too.
    assert read(head(status=b"100") + data, max_head_bytes=len(data)).startswith("a head of more")


def test_chunks_may_have_eight_bytes_around_each_byte_of_the_body() -> None:
    begin = head(b"Transfer-Encoding: chunked")
    body = b"2;" + b"x" * 30 + b"\r\nok\r\n0\r\n\r\n"
    framing_bytes = len(begin + body) - 2

    assert read(begin + body, max_head_bytes=framing_bytes - 16) == "200 kept"
    refusal = f"a head of more than {framing_bytes - 17} bytes"
    assert read(begin + body, max_head_bytes=framing_bytes - 17) == refusal


def test_the_bytes_of_a_body_are_no_head() -> None:
    body = bytes(50_000)
    begin = head(b"Content-Length: 50000")

    assert read(begin + body, max_head_bytes=len(begin), max_body_bytes=50_000) == "200 kept"


def test_a_reply_may_have_so_many_headers() -> None:
    headers = [b"Content-Length: 0"] + [b"A: b"] * (MAX_HEADER_COUNT - 1)
    trailers = b"0\r\n" + b"A: b\r\n" * (MAX_HEADER_COUNT - 1) + b"\r\n"

    assert read(head(*headers)) == "200 kept"
    assert read(head(*headers, b"A: b")) == "more than 128 headers"
    assert read(head(b"Transfer-Encoding: chunked") + trailers) == "200 kept"
    assert read(head(b"Transfer-Encoding: chunked", b"A: b") + trailers) == "more than 128 headers"


@pytest.mark.parametrize("status", [b"200", b"404", b"500"])
@pytest.mark.parametrize(
    ("begin", "before", "after", "end"),
    [
        (b"Content-Length: %d", b"", b"", "kept"),
        (b"Transfer-Encoding: chunked", b"%x\r\n", b"\r\n0\r\n\r\n", "kept"),
        (b"Transfer-Encoding: Chunked", b"%x\r\n", b"\r\n0\r\n\r\n", "kept"),
        (b"Content-Length: %d\r\nConnection: close", b"", b"", "closed"),
        (b"X-Without: length", b"", b"", "closed"),
    ],
)
def test_a_body_may_have_as_many_bytes_as_is_said(
    status: bytes, begin: bytes, before: bytes, after: bytes, end: str
) -> None:
    def fill(text: bytes, count: int) -> bytes:
        return text % count if b"%" in text else text

    def reply(count: int) -> bytes:
        first = head(fill(begin, count), status=status)
        return first + fill(before, count) + bytes(count) + after

    assert read(reply(100)) == f"{status.decode()} {end}"
    assert read(reply(101)) == "reply of more than 100 bytes"


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (head(status=b"204"), "204 kept"),
        (head(status=b"304"), "304 kept"),
        (head(b"Connection: close", status=b"204"), "204 closed"),
        (head(status=b"205"), "205 closed"),
        (head(status=b"100"), "no end"),
        (head(status=b"199"), "no end"),
        (head(b"Content-Length: 3") + b"ok", "no end"),
        (head(b"Transfer-Encoding: chunked") + b"2\r\nok\r\n", "no end"),
        (head(b"Transfer-Encoding: gzip") + b"ok", "an unknown transfer coding"),
        (head(b"Content-Length: 101"), "reply of more than 100 bytes"),
        (UPGRADE, "the server changes the protocol"),
        (b"220 smtp ready\r\n", "the reply is not HTTP"),
        (OK + b"more", "200 closed"),
        (OK + OK, "200 closed"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "200 closed"),
    ],
)
def test_how_a_reply_ends(data: bytes, end: str) -> None:
    assert read(data) == end


def test_a_closed_parser_holds_no_error() -> None:
    parser = ReplyParser(max_head_bytes=1000, max_body_bytes=1)
    with pytest.raises(BadReplyError):
        parser.feed(OK)
    alive = weakref.ref(parser)

    gc.disable()
    try:
        parser.close()
        del parser
        assert alive() is None
    finally:
        gc.enable()
