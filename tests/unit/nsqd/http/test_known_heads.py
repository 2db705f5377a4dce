import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.http.known_heads import MAX_KNOWN_HEAD_BYTES, MAX_KNOWN_HEADS, KnownHeads
from nsqd.http.parser import BeforeHook, HttpLimits, RequestParser
from nsqd.http.routes import OK, HttpError, Request, Response, Router


def make_parser(heads: KnownHeads, before: BeforeHook | None = None) -> RequestParser:
    router = Router()
    router.add("GET", "/ping", lambda _: OK)
    router.add("POST", "/pub", lambda _: OK, max_body_bytes=100)
    return RequestParser(
        router, HttpLimits(), "127.0.0.1:5", is_tls=False, before=before, heads=heads
    )


def post(body: bytes, *lines: bytes, target: bytes = b"/pub?topic=t") -> bytes:
    head = (b"POST " + target + b" HTTP/1.1", b"Host: h", *lines)
    return b"\r\n".join((*head, b"Content-Length: %d" % len(body), b"", body))


def read(parser: RequestParser, data: bytes) -> tuple[list[Request], bool]:
    """Read as a connection does; return the requests, and whether the head was known."""
    request = parser.find_repeated(data)
    if request is not None:
        return [request], True
    parser.feed(data)
    requests = list(parser.ready)
    parser.ready.clear()
    return requests, False


def describe(request: Request) -> tuple[object, ...]:
    reply = request.route.handler(request)
    assert isinstance(reply, Response)
    return (
        *(request.raw_method, request.target.raw, request.headers, request.body),
        *(request.is_last, request.reply_lines, request.has_chunks, request.remote),
        *(reply.status, request.route.max_body_bytes),
    )


def test_a_head_is_known_from_the_second_time_on_also_to_other_connections() -> None:
    heads = KnownHeads()
    parser = make_parser(heads)

    assert not read(parser, post(b"first"))[1]
    for each in (parser, make_parser(heads)):
        (request,), is_known = read(each, post(b"other"))

        assert is_known
        assert (request.method, request.path, request.body) == ("POST", "/pub", b"other")
        assert request.find("topic") == "t"
    assert not read(parser, post(b"longer"))[1]
    assert not read(parser, post(b"other", target=b"/pub?topic=u"))[1]


def test_blank_lines_behind_a_request_that_waits_are_no_head() -> None:
    heads = KnownHeads()
    parser = make_parser(heads)
    parser.feed(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
    parser.feed(b"\r\n\r\n")

    assert len(parser.ready) == 1
    assert make_parser(heads).find_repeated(b"\r\n\r\n") is None


def test_a_request_without_a_body_is_found_again() -> None:
    parser = make_parser(KnownHeads())
    ping = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"

    assert [read(parser, ping)[1] for _ in range(3)] == [False, True, True]


PLAIN = post(b"hello")


@pytest.mark.parametrize(
    "data",
    [
        PLAIN[:-1],
        PLAIN + b"\r\n",
        PLAIN + PLAIN,
        b"\r\n\r\n" + PLAIN,
    ],
)
def test_only_exactly_one_request_is_found(data: bytes) -> None:
    heads = KnownHeads()
    read(make_parser(heads), PLAIN)

    assert make_parser(heads).find_repeated(data) is None


@pytest.mark.parametrize(
    "data",
    [
        post(b"hello", b"Connection: keep-alive"),
        post(b"hello", b"Connection: close"),
        post(b"hello", b"Expect: 100-continue"),
        post(b"hello", b"X: " + b"x" * MAX_KNOWN_HEAD_BYTES),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"Host: h", b"Host: h\r\nUpgrade: h2c"),
        PLAIN.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked")[:-5] + b"0\r\n\r\n",
        post(b"x" * 101),
        PLAIN + b"\r\n",
        post(b"\r\nabc") + b"\r\n",
        PLAIN + PLAIN,
        b"\r\n\r\n" + PLAIN,
    ],
)
def test_other_requests_are_parsed_each_time(data: bytes) -> None:
    heads = KnownHeads()
    read(make_parser(heads), data)

    assert make_parser(heads).find_repeated(data) is None


def test_a_known_head_within_a_request_is_its_body() -> None:
    heads = KnownHeads()
    read(make_parser(heads), PLAIN)
    for begun in (b"POST /pub HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n", b"P", b"\r"):
        parser = make_parser(heads)
        parser.feed(begun)

        assert parser.find_repeated(PLAIN) is None


def test_a_known_head_waits_for_the_requests_before_it() -> None:
    heads = KnownHeads()
    parser = make_parser(heads)
    parser.feed(PLAIN)

    assert parser.find_repeated(PLAIN) is None


def test_no_request_is_found_after_a_refusal() -> None:
    heads = KnownHeads()
    read(make_parser(heads), PLAIN)
    parser = make_parser(heads)
    parser.feed(b"\0")
    parser.ready.clear()

    assert parser.find_repeated(PLAIN) is None


def test_before_sees_every_request_and_may_change_its_mind() -> None:
    is_open = True

    def before(request: Request) -> None:
        request.add_reply_header("X-Seen", "yes")
        if not is_open:
            raise HttpError(403, "SHUT")

    parser = make_parser(KnownHeads(), before)
    read(parser, PLAIN)
    (request,), is_known = read(parser, PLAIN)
    assert is_known
    assert request.reply_lines == b"X-Seen: yes\r\n"
    is_open = False

    (refused,), is_known = read(parser, PLAIN)

    assert not is_known
    assert describe(refused)[-2] == 403
    is_open = True
    assert read(parser, PLAIN)[1]


def test_a_head_that_before_refused_is_not_known() -> None:
    heads = KnownHeads()
    read(make_parser(heads, lambda _: Response(status=401)), PLAIN)

    assert heads.find(PLAIN) is None


def test_the_heads_are_bounded() -> None:
    heads = KnownHeads()
    parser = make_parser(heads)
    requests = [post(b"x", target=b"/pub?topic=t%d" % n) for n in range(MAX_KNOWN_HEADS + 1)]
    for request in requests[:-1]:
        read(parser, request)
    assert all(heads.find(request) for request in requests[:-1])

    read(parser, requests[-1])

    assert [request for request in requests if heads.find(request)] == requests[-1:]


MESSAGES = [
    PLAIN,
    post(b"world"),
    post(b""),
    post(b"\r\n\r\n"),
    post(b"\r\nab", b"X: y"),
    post(b"a", target=b"/nope"),
    post(b"a", b"Connection: keep-alive"),
    b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"\r\n",
]


@given(st.lists(st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=3), max_size=12))
@settings(max_examples=200)
def test_known_heads_change_no_request(reads: list[list[bytes]]) -> None:
    known = make_parser(KnownHeads())
    plain = make_parser(KnownHeads())
    for messages in reads:
        data = b"".join(messages)
        requests, _ = read(known, data)

        plain.feed(data)

        assert list(map(describe, requests)) == list(map(describe, plain.ready))
        plain.ready.clear()
