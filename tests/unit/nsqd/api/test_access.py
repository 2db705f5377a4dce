"""CORS, and TLS only."""

import pytest

from nsqd.api.access import CorsPolicy, refuse_plain_http
from nsqd.http.routes import EMPTY, Request, Route, Target

ROUTE = Route(lambda request: EMPTY)


def request(
    method: bytes = b"POST",
    target: bytes = b"/pub?topic=t",
    headers: dict[bytes, bytes] | None = None,
    *,
    is_tls: bool = False,
) -> Request:
    return Request(method, Target(target), ROUTE, headers or {}, "peer", is_tls=is_tls)


class TestTls:
    def test_plain_requests_are_sent_to_the_https_port(self) -> None:
        check = refuse_plain_http(4152)

        reply = check(request())

        assert reply is not None
        assert (reply.status, reply.body) == (
            403,
            b'{"message": "TLS_REQUIRED", "https_port": 4152}',
        )

    def test_requests_over_tls_pass(self) -> None:
        assert refuse_plain_http(4152)(request(is_tls=True)) is None


class TestCors:
    def test_an_allowed_origin_is_named(self) -> None:
        marked = request(headers={b"origin": b"https://a.example"})

        CorsPolicy(["https://a.example", "https://b.example"]).mark(marked)

        assert marked.reply_lines == (
            b"Vary: Origin\r\nAccess-Control-Allow-Origin: https://a.example\r\n"
            b"Access-Control-Expose-Headers: X-NSQ-Content-Type\r\n"
        )

    @pytest.mark.parametrize(
        "origin",
        [b"https://evil.example", b"null", b"https://a.example.evil", b"HTTPS://A.EXAMPLE"],
    )
    def test_another_origin_is_not(self, origin: bytes) -> None:
        marked = request(headers={b"origin": origin})

        CorsPolicy(["https://a.example"]).mark(marked)

        assert marked.reply_lines == b"Vary: Origin\r\n"

    def test_a_star_allows_all(self) -> None:
        marked = request(headers={b"origin": b"https://any.example"})

        CorsPolicy(["*"]).mark(marked)

        assert b"Access-Control-Allow-Origin: *\r\n" in marked.reply_lines
        assert b"Vary" not in marked.reply_lines

    def test_without_origin_nothing_is_said(self) -> None:
        marked = request()

        CorsPolicy(["*"]).mark(marked)

        assert marked.reply_lines == b""

    def test_a_preflight_is_told_methods_and_headers(self) -> None:
        headers = {b"origin": b"https://a.example", b"access-control-request-method": b"POST"}
        preflight = request(b"OPTIONS", headers=headers)
        other = request(b"GET", headers=headers)

        for marked in (preflight, other):
            CorsPolicy(["*"]).mark(marked)

        assert b"Access-Control-Allow-Methods: GET, POST, PUT, OPTIONS\r\n" in preflight.reply_lines
        assert (
            b"Access-Control-Allow-Headers: Authorization, Content-Type\r\n"
            in preflight.reply_lines
        )
        assert b"Access-Control-Max-Age: 600\r\n" in preflight.reply_lines
        assert b"Allow-Methods" not in other.reply_lines
