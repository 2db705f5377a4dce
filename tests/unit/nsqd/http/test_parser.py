import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.http.parser import (
    FEED_SLICE_BYTES,
    BeforeHook,
    HttpLimits,
    Phase,
    RequestParser,
)
from nsqd.http.routes import OK, HttpError, Request, Response, Router, Style

LIMITS = HttpLimits(max_target_bytes=64, max_header_count=8, max_header_bytes=512)


def ok(request: Request) -> Response:
    return OK


def make_parser(limits: HttpLimits = LIMITS, before: BeforeHook | None = None) -> RequestParser:
    router = Router()
    router.add("GET", "/ping", ok)
    router.add("POST", "/pub", ok, max_body_bytes=100, too_large_code="MSG_TOO_BIG")
    router.add("POST", "/plain", ok, max_body_bytes=10, style=Style.PLAIN)
    return RequestParser(router, limits, "127.0.0.1:5", is_tls=False, before=before)


def parse(*parts: bytes, parser: RequestParser | None = None) -> list[Request]:
    parser = parser or make_parser()
    for part in parts:
        parser.feed(part)
    return list(parser.ready)


def reply_to(request: Request) -> Response:
    reply = request.route.handler(request)
    assert isinstance(reply, Response)
    return reply


def refusal(*parts: bytes, parser: RequestParser | None = None) -> tuple[int, bytes]:
    """The status and body of the one refusal that the bytes lead to."""
    parser = parser or make_parser()
    (request,) = parse(*parts, parser=parser)
    assert parser.has_refused
    assert request.is_last
    assert request.reply_lines == b"Connection: close\r\n"
    return reply_to(request).status, reply_to(request).body


BAD_REQUEST = (400, b'{"message":"BAD_REQUEST"}')


def head(*lines: bytes, start: bytes = b"POST /pub HTTP/1.1", host: bytes = b"Host: h") -> bytes:
    return b"\r\n".join((start, host, *lines, b"", b""))


# Requests


def test_a_request_with_a_body() -> None:
    (request,) = parse(head(b"Content-Length: 5", b"X-A: b") + b"hello")

    assert (request.method, request.path, request.body) == ("POST", "/pub", b"hello")
    assert request.headers == {b"host": b"h", b"content-length": b"5", b"x-a": b"b"}
    assert request.remote == "127.0.0.1:5"
    assert not request.is_last
    assert request.reply_lines == b""


def test_pipelined_requests_come_in_order() -> None:
    requests = parse(head(b"Content-Length: 1") + b"a" + head(b"Content-Length: 2") + b"bc")

    assert [request.body for request in requests] == [b"a", b"bc"]


def test_a_chunked_body_is_put_together_and_its_trailers_dropped() -> None:
    chunks = b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-T: 1\r\nHost: evil\r\n\r\n"

    requests = parse(head(b"Transfer-Encoding: chunked") + chunks + head(b"X-Next: 1"))

    assert requests[0].body == b"abc0123456789"
    assert b"x-t" not in requests[0].headers
    assert requests[1].headers == {b"host": b"h", b"x-next": b"1"}


def test_repeated_headers_are_merged() -> None:
    (request,) = parse(head(b"X-A: 1", b"x-a: 2"))

    assert request.headers[b"x-a"] == b"1, 2"


def test_blank_lines_before_a_request_are_skipped() -> None:
    assert len(parse(b"\r\n\r\n" + head())) == 1


@pytest.mark.parametrize(
    "data",
    [
        head(b"Host: other"),
        head(b"Content-Length: 5", b"X: " + b"x" * 600),
        head(b"Transfer-Encoding: chunked") + b"zz",
    ],
)
def test_a_refused_request_is_not_under_way_any_more(data: bytes) -> None:
    parser = make_parser()

    refusal(data, parser=parser)

    assert parser.phase is Phase.BETWEEN


def test_phases_follow_the_input() -> None:
    parser = make_parser()
    seen = []
    for part in (b"PO", b"ST /pub HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n", b"a", b"b"):
        parser.feed(part)
        seen.append(parser.phase)

    assert seen == [Phase.HEAD, Phase.BODY, Phase.BODY, Phase.BETWEEN]


# Persistence


def test_http_10_ends_the_connection() -> None:
    (request,) = parse(b"GET /ping HTTP/1.0\r\n\r\n")

    assert request.is_last
    assert request.reply_lines == b"Connection: close\r\n"


def test_http_10_keep_alive_is_confirmed() -> None:
    (request,) = parse(b"GET /ping HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")

    assert not request.is_last
    assert request.reply_lines == b"Connection: keep-alive\r\n"


def test_a_confirmed_connection_can_still_end() -> None:
    (request,) = parse(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

    request.end_connection()
    request.end_connection()

    assert request.reply_lines == b"Connection: close\r\n"


def test_connection_close_is_honoured() -> None:
    (request,) = parse(head(b"Connection: close", start=b"GET /ping HTTP/1.1"))

    assert request.is_last


@pytest.mark.parametrize("start", [b"GET /ping HTTP/2.0", b"GET /ping HTTP/0.9", b"GET /ping"])
def test_other_versions_are_505(start: bytes) -> None:
    assert refusal(start + b"\r\n\r\n")[0] == 505


# Malformed requests and attempts at smuggling


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"hello\r\n",
        b"FOO /ping HTTP/1.1\r\n\r\n",
        b"GET ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.2\r\n\r\n",
        b"GET /pi ng HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\nHost: h\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        head(host=b"X: y"),
        head(b"Host: two"),
        head(b"Ho st: x"),
        head(b"X : y"),
        head(b"X: y", b" folded"),
        head(b"X: a\x00b"),
        head(b"X: a\rb"),
        head(b"Content-Length: 1", b"Content-Length: 2") + b"ab",
        head(b"Content-Length: 1", b"Content-Length: 1") + b"a",
        head(b"Content-Length: 1, 1") + b"a",
        head(b"Content-Length: +1") + b"a",
        head(b"Content-Length: -1"),
        head(b"Content-Length: 0x1") + b"a",
        head(b"Content-Length:") + b"a",
        head(b"Content-Length: 99999999999999999999"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n",
        head(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head(b"Transfer-Encoding: chunked", start=b"POST /pub HTTP/1.0") + b"0\r\n\r\n",
        head(b"Transfer-Encoding: chunked") + b"-1\r\n",
        head(b"Transfer-Encoding: chunked") + b"1\nx\n0\n\n",
        head(b"Transfer-Encoding: chunked") + b"1 \r\nx\r\n0\r\n\r\n",
        head(b"Transfer-Encoding: chunked") + b"1\r\nxy\r\n0\r\n\r\n",
        head(b"Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n",
    ],
)
def test_malformed_input_is_400_whatever_the_split(data: bytes) -> None:
    assert refusal(data) == BAD_REQUEST
    assert refusal(*(data[n : n + 1] for n in range(len(data)))) == BAD_REQUEST


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"xchunked", b"identity"])
def test_other_transfer_codings_are_501(coding: bytes) -> None:
    assert refusal(head(b"Transfer-Encoding: " + coding))[0] == 501


def test_requests_before_a_malformed_one_are_kept() -> None:
    parser = make_parser()

    requests = parse(head(start=b"GET /ping HTTP/1.1"), b"\x00", head(), parser=parser)

    assert [reply_to(request).status for request in requests] == [200, 400]


def test_data_after_connection_close_is_not_a_request() -> None:
    parser = make_parser()

    requests = parse(head(b"Connection: close") + head(), parser=parser)

    assert requests[0].is_last
    assert [reply_to(request).status for request in requests] == [200, 400]


def test_a_route_without_a_bound_of_its_own_takes_64_kib() -> None:
    def length(size: int) -> bytes:
        return head(b"Content-Length: %d" % size, start=b"GET /ping HTTP/1.1")

    assert parse(length(64 * 1024)) == []
    assert refusal(length(64 * 1024 + 1))[0] == 413


# Upgrade


UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA")


def test_an_upgrade_is_ignored_and_the_body_read() -> None:
    data = head(*UPGRADE, b"Content-Length: 3") + b"abc" + head(b"Content-Length: 1") + b"d"

    requests = parse(data)

    assert [request.body for request in requests] == [b"abc", b"d"]
    assert not requests[0].is_last


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_upgrade_with_close_closes(version: bytes) -> None:
    start = b"POST /pub HTTP/" + version
    lines = (b"Connection: upgrade, close", b"Upgrade: h2c", b"Content-Length: 3")
    (request,) = parse(head(*lines, start=start) + b"abc")

    assert (request.is_last, request.body, reply_to(request).status) == (True, b"abc", 200)


def test_many_upgrades_in_one_read_are_ignored() -> None:
    one = head(b"Connection: upgrade", b"Upgrade: x")

    assert len(parse(one * (FEED_SLICE_BYTES // len(one)))) == FEED_SLICE_BYTES // len(one)


def test_a_tunnel_is_refused() -> None:
    data = head(start=b"CONNECT h:1 HTTP/1.1") + b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"

    assert refusal(data) == BAD_REQUEST


# Limits


def test_the_target_has_a_limit() -> None:
    def get(size: int) -> bytes:
        return head(start=b"GET /ping?".ljust(size + 4, b"x") + b" HTTP/1.1")

    assert reply_to(parse(get(64))[0]).status == 200
    assert refusal(get(65)) == (414, b'{"message":"URI_TOO_LONG"}')
    assert refusal(get(65)[:40], get(65)[40:]) == (414, b'{"message":"URI_TOO_LONG"}')


@pytest.mark.parametrize("name", [b"X-%d: 1", b"X: %d"])
def test_the_headers_have_a_limit_on_their_number(name: bytes) -> None:
    def post(count: int) -> bytes:
        return head(*(name % number for number in range(count - 1)))

    assert len(parse(post(8))[0].headers) in (8, 2)
    assert refusal(post(9)) == (431, b'{"message":"HEADERS_TOO_LARGE"}')


def test_the_headers_have_a_limit_on_their_size() -> None:
    # The target takes 4, Host 9, and the header 6 besides its value.
    def post(size: int) -> bytes:
        return head(b"X-: " + b"v" * (size - 4 - 9 - 6))

    assert len(parse(post(512))) == 1
    for data in (post(513), post(100_000)):
        assert refusal(data) == (431, b'{"message":"HEADERS_TOO_LARGE"}')
        slices = (data[n : n + 100] for n in range(0, len(data), 100))
        assert refusal(*slices) == (431, b'{"message":"HEADERS_TOO_LARGE"}')


def test_a_refused_head_is_recorded_alike_whatever_the_split() -> None:
    data = head(
        b"X: " + b"v" * 300, *(b"X-%d: 1" % number for number in range(9)), b"Y: " + b"v" * 300
    )

    (whole,) = parse(data)
    (parts,) = parse(data[:-5], data[-5:])

    assert (whole.uri, whole.method) == (parts.uri, parts.method) == ("", "POST")


def test_a_head_that_never_ends_is_refused() -> None:
    endless = [b"GET /ping HTTP/1.1\r\nX: ", *([b"y" * 1000] * 100)]

    assert refusal(*endless)[0] == 431


def test_head_without_an_end_gets_no_body() -> None:
    (request,) = parse(b"HEAD /ping HTTP/1.1\r\nX: ", *([b"y" * 1000] * 100))

    assert request.raw_method == b"HEAD"


def test_a_declared_body_is_refused_before_it_comes() -> None:  # H-23
    assert refusal(head(b"Content-Length: 101")) == (413, b'{"message":"MSG_TOO_BIG"}')
    assert len(parse(head(b"Content-Length: 100") + b"x" * 100)) == 1


def test_a_chunked_body_is_refused_as_soon_as_it_exceeds() -> None:  # H-23
    start = head(b"Transfer-Encoding: chunked") + b"64\r\n" + b"x" * 100 + b"\r\n"

    assert len(parse(start + b"0\r\n\r\n")) == 1
    assert refusal(start + b"1\r\ny") == (413, b'{"message":"MSG_TOO_BIG"}')


def test_the_limit_is_for_each_body_and_not_for_their_sum() -> None:
    chunked = head(b"Transfer-Encoding: chunked") + b"3c\r\n" + b"x" * 60 + b"\r\n0\r\n\r\n"
    declared = head(b"Content-Length: 60") + b"x" * 60

    requests = parse(chunked + declared + chunked + declared)

    assert [reply_to(request).status for request in requests] == [200] * 4


def test_the_refusal_has_the_style_of_its_route() -> None:
    data = head(b"Content-Length: 11", start=b"POST /plain HTTP/1.1")

    assert refusal(data) == (413, b"BODY_TOO_BIG")


def test_a_large_body_for_nobody_is_answered_without_it() -> None:
    data = head(b"Content-Length: 99999999", start=b"POST /nope HTTP/1.1")

    assert refusal(data) == (404, b'{"message":"NOT_FOUND"}')


def test_a_small_body_for_nobody_is_read() -> None:
    requests = parse(head(b"Content-Length: 3", start=b"POST /nope HTTP/1.1") + b"abc" + head())

    assert [reply_to(request).status for request in requests] == [404, 200]


@pytest.mark.parametrize("padding", [b"1;" + b"e" * 50_000, b"0\r\nX: " + b"t" * 50_000])
def test_the_framing_of_chunks_has_a_limit(padding: bytes) -> None:
    slices = [padding[n : n + 1000] for n in range(0, len(padding), 1000)]

    assert refusal(head(b"Transfer-Encoding: chunked"), *slices)[0] == 431


def test_small_chunks_are_within_the_limit() -> None:
    data = head(b"Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 100 + b"0\r\n\r\n"

    assert parse(*(data[n : n + 7] for n in range(0, len(data), 7)))[0].body == b"x" * 100


# Expect


@pytest.mark.parametrize("framing", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
def test_expect_is_due_until_the_body_comes(framing: bytes) -> None:
    parser = make_parser()

    parser.feed(head(b"Expect: 100-Continue", framing))
    assert parser.is_continue_due

    parser.feed(b"ab" if framing.startswith(b"C") else b"2\r\nab\r\n")
    assert not parser.is_continue_due


def test_expect_without_a_body_is_not_due() -> None:
    parser = make_parser()
    parser.feed(head(b"Expect: 100-continue"))

    assert not parser.is_continue_due
    assert len(parser.ready) == 1


def test_expect_in_http_10_is_ignored() -> None:
    parser = make_parser()
    parser.feed(b"POST /pub HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")

    assert not parser.is_continue_due


@pytest.mark.parametrize(
    ("start", "length", "status"),
    [(b"POST /pub", 101, 413), (b"POST /nope", 1, 404), (b"PUT /ping", 1, 405)],
)
def test_expect_of_a_refused_request_is_answered_at_once(
    start: bytes, length: int, status: int
) -> None:
    data = head(b"Expect: 100-continue", b"Content-Length: %d" % length, start=start + b" HTTP/1.1")

    assert refusal(data)[0] == status


def test_other_expectations_are_417() -> None:
    assert refusal(head(b"Expect: 200-ok", b"Content-Length: 1"))[0] == 417


# The hook


def test_before_answers_ahead_of_routing_and_sees_no_body() -> None:
    seen: list[tuple[str, bytes]] = []

    def before(request: Request) -> Response:
        seen.append((request.path, request.body))
        return Response(403, b"TLS")

    parser = make_parser(before=before)
    requests = parse(
        head(b"Content-Length: 1") + b"x" + head(start=b"GET /nope HTTP/1.1"), parser=parser
    )

    assert [reply_to(request).status for request in requests] == [403, 403]
    assert seen == [("/pub", b""), ("/nope", b"")]


def test_before_may_add_headers_and_let_pass() -> None:
    def before(request: Request) -> None:
        request.add_reply_header("Access-Control-Allow-Origin", "*")

    (request,) = parse(head(), parser=make_parser(before=before))

    assert reply_to(request) is OK
    assert request.reply_lines == b"Access-Control-Allow-Origin: *\r\n"
    with pytest.raises(ValueError, match="line break"):
        request.add_reply_header("A", "b\r\n")


def test_before_may_raise_an_http_error() -> None:
    def before(request: Request) -> None:
        raise HttpError(401, "UNAUTHORIZED")

    data = head(b"Expect: 100-continue", b"Content-Length: 5")

    assert refusal(data, parser=make_parser(before=before))[0] == 401


def test_a_crash_in_before_is_500(caplog: pytest.LogCaptureFixture) -> None:
    def before(request: Request) -> None:
        raise KeyError

    (request,) = parse(head(), parser=make_parser(before=before))

    assert reply_to(request).status == 500
    assert len(caplog.records) == 1


def test_a_failed_assertion_in_before_comes_out_of_feed() -> None:
    def before(request: Request) -> None:
        raise AssertionError("broken invariant")

    with pytest.raises(AssertionError, match="broken invariant"):
        make_parser(before=before).feed(head())


# Any split, any bytes


def describe(parser: RequestParser) -> list[tuple[bytes, str, int, bool, bytes]]:
    return [
        (request.body, request.uri, reply_to(request).status, request.is_last, request.raw_method)
        for request in parser.ready
    ]


WELL_FORMED = [
    head(start=b"GET /ping?x=%41 HTTP/1.1"),
    head(b"Content-Length: 5") + b"hello",
    head(b"Content-Length: 5", start=b"POST /nope HTTP/1.1") + b"hello",
    head(b"Transfer-Encoding: chunked", b"X-A: 1", b"X-A: 2")
    + b"3\r\nabc\r\n2;e\r\nde\r\n0\r\nT: 1\r\n\r\n",
    head(b"Expect: 100-continue", b"Content-Length: 2") + b"ab",
    head(*UPGRADE, b"Content-Length: 3") + b"abc",
    b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    head(start=b"HEAD /PING/ HTTP/1.1"),
]
LAST = [
    b"",
    head(b"Connection: close"),
    head(b"Content-Length: 101") + b"x" * 101,
    head(b"Host: again"),
    head(*(b"X-%d: 1" % n for n in range(9))),
    b"\x00\x01",
]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(
    st.lists(st.sampled_from(WELL_FORMED), max_size=6),
    st.sampled_from(LAST),
    st.lists(st.integers(min_value=0), max_size=20),
)
@settings(max_examples=200)
def test_any_split_gives_the_same_requests(
    messages: list[bytes], last: bytes, cuts: list[int]
) -> None:
    data = b"".join(messages) + last
    whole = make_parser()
    whole.feed(data)

    parts = make_parser()
    for part in split(data, cuts):
        parts.feed(part)

    assert describe(parts) == describe(whole)
    assert parts.has_refused == whole.has_refused
    if last == b"":
        assert len(parts.ready) == len(messages)
        assert parts.phase is Phase.BETWEEN


def mutate(data: bytes) -> Callable[[list[tuple[int, int]]], bytes]:
    def apply(changes: list[tuple[int, int]]) -> bytes:
        changed = bytearray(data)
        for position, byte in changes:
            changed[position % len(changed)] = byte
        return bytes(changed)

    return apply


BYTE = st.integers(0, 255)
ALMOST = st.builds(
    lambda data, changes: mutate(data)(changes),
    st.sampled_from(WELL_FORMED),
    st.lists(st.tuples(st.integers(min_value=0), BYTE), min_size=1, max_size=3),
)


@given(st.lists(st.one_of(st.binary(max_size=200), ALMOST), max_size=5))
@settings(max_examples=300)
def test_no_input_makes_the_parser_fail(parts: list[bytes]) -> None:
    parser = make_parser()
    for part in parts:
        parser.feed(part)

    refusals = [request for request in parser.ready if reply_to(request).status >= 500]
    assert all(request.is_last for request in refusals)
    if parser.has_refused:
        assert parser.ready[-1].is_last


# Host, and other protocols


@pytest.mark.parametrize(
    "host",
    [
        *(b"", b"h", b"h:", b"h:4151", b"a.b-c_d~e", b"%41", b"127.0.0.1:80", b"[::1]:4151"),
        *(b"[::ffff:1.2.3.4]", b"[v1.a:b]", b"*"),
    ],
)
def test_a_host_of_rfc_9112_is_taken(host: bytes) -> None:
    (request,) = parse(head(b"Content-Length: 0", host=b"Host: " + host))

    assert reply_to(request) is OK


@pytest.mark.parametrize(
    "host",
    [
        *(b"a b", b"a/b", b"a?b", b"a#b", b"user@h", b"h:80:80", b"h:x", b"[::1", b"::1", b"[g]"),
        *(b"%4", b"%zz", b"a,b c", b"h\x80", b"<h>", b'"h"', b"h\\"),
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_any_other_host_is_refused(host: bytes, version: bytes) -> None:
    start = b"POST /pub HTTP/" + version

    assert refusal(head(b"Content-Length: 0", start=start, host=b"Host: " + host)) == BAD_REQUEST


def test_a_host_is_checked_again_when_it_changes() -> None:
    good = head(b"Content-Length: 0")
    parser = make_parser()

    *_, last = parse(good, good, head(b"Content-Length: 0", host=b"Host: a b"), parser=parser)

    assert len(parser.ready) == 3
    assert (reply_to(last).status, parser.has_refused) == (400, True)


def test_a_later_request_of_http_1_0_needs_no_host() -> None:
    keep = b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n"

    first, second = parse(keep + b"Host: h\r\n\r\n" + keep + b"\r\n")

    assert reply_to(first) is reply_to(second) is OK


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS", b"DESCRIBE", b"SETUP"])
def test_rtsp_is_no_http(method: bytes, version: bytes) -> None:
    data = head(start=method + b" /ping RTSP/" + version)
    get = head(start=b"GET /ping HTTP/1.1")

    assert refusal(data) == BAD_REQUEST
    assert refusal(b"\r\n" + data) == BAD_REQUEST
    for at in range(1, data.index(b"\r\n") + 1):
        assert refusal(data[:at], data[at:]) == BAD_REQUEST
    *_, last = parse(get + data)
    assert reply_to(last).status == 400


def test_rtsp_in_a_body_or_a_header_is_just_text() -> None:
    line = b"GET /ping RTSP/1.0\r\n"
    post = head(b"Content-Length: 42", b"X-Note: GET /a RTSP/1.0") + line + b"\n" + line + b"x"
    for at in range(len(post)):
        first, second = parse(post[:at], post[at:] + post)

        assert reply_to(first) is reply_to(second) is OK
        assert first.body == second.body == line + b"\n" + line + b"x"


def test_each_head_and_each_body_has_the_whole_room_for_what_is_not_kept() -> None:
    parser = make_parser()
    room_bytes = 2 * LIMITS.max_header_bytes + FEED_SLICE_BYTES - 1000
    padded = head(b"Transfer-Encoding: chunked", b"X-A:" + b" " * room_bytes + b"b")
    chunks = b"1;" + b"x" * room_bytes + b"\r\na\r\n0\r\n\r\n"
    stream = (padded + chunks) * 3

    for start in range(0, len(stream), 500):
        parser.feed(stream[start : start + 500])

    assert not parser.has_refused
    assert [it.body for it in parser.ready] == [b"a"] * 3
    assert parser.request_count == 3


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("body_bytes", [1, 9])
def test_chunks_may_have_eight_bytes_around_each_byte_of_the_body(
    excess: int, body_bytes: int
) -> None:
    allowed_bytes = 2 * LIMITS.max_header_bytes + FEED_SLICE_BYTES + 8 * body_bytes
    begin = head(b"Transfer-Encoding: chunked") + b"1\r\na\r\n" * (body_bytes - 1)
    padding = allowed_bytes + excess - len(begin) - len(b"1;\r\na\r\n")
    parser = make_parser()

    parser.feed(begin + b"1;" + b"x" * padding + b"\r\na\r\n")

    assert parser.has_refused is (excess > 0)
