import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.http.reply_parser import BadReplyError, Reply, ReplyParser

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
