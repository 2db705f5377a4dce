"""CORS, the bearer token, and TLS only."""

from pathlib import Path

import pytest

from nsqd.api.access import (
    TOKEN_CHECK_S,
    BearerToken,
    CorsPolicy,
    refuse_plain_http,
)
from nsqd.config.flags import OptionsError
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


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestBearerToken:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "token"
        path.write_text("open sesame".replace(" ", "-") + "\n")
        return path

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def token(self, path: Path, clock: Clock) -> BearerToken:
        return BearerToken(str(path), guarded_paths=["/empty_topic"], clock=clock)

    @pytest.mark.parametrize(
        "header", [b"Bearer open-sesame", b"bearer open-sesame", b"BEARER   open-sesame "]
    )
    def test_a_change_with_the_token_passes(self, token: BearerToken, header: bytes) -> None:
        assert token.check(request(headers={b"authorization": header})) is None

    @pytest.mark.parametrize(
        "header",
        [b"", b"Bearer", b"Bearer ", b"Bearer open", b"Bearer open-sesame2", b"Basic open-sesame",
         b"open-sesame", b"Bearer \xff", b"Bearer open-sesame open-sesame"],
    )  # fmt: skip
    def test_a_change_without_it_is_refused(self, token: BearerToken, header: bytes) -> None:
        reply = token.check(request(headers={b"authorization": header} if header else None))

        assert reply is not None
        assert (reply.status, reply.body) == (401, b'{"message":"UNAUTHORIZED"}')
        assert reply.headers["WWW-Authenticate"] == 'Bearer realm="nsqd"'

    @pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"PATCH"])
    def test_changing_methods_need_it(self, token: BearerToken, method: bytes) -> None:
        assert token.check(request(method)) is not None

    @pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
    def test_reading_does_not(self, token: BearerToken, method: bytes) -> None:
        assert token.check(request(method, b"/stats")) is None

    def test_a_get_that_changes_something_does(self, token: BearerToken) -> None:
        assert token.check(request(b"GET", b"/empty_topic?topic=t")) is not None
        assert token.check(request(b"GET", b"/empty%5Ftopic?topic=t")) is not None

    def test_a_new_token_holds_soon(self, token: BearerToken, path: Path, clock: Clock) -> None:
        path.write_text("new-token")
        clock.now += TOKEN_CHECK_S

        assert token.check(request(headers={b"authorization": b"Bearer new-token"})) is None
        assert token.check(request(headers={b"authorization": b"Bearer open-sesame"})) is not None

    @pytest.mark.parametrize("is_deleted", [True, False])
    def test_a_broken_file_leaves_the_old_token(
        self, token: BearerToken, path: Path, clock: Clock, *, is_deleted: bool
    ) -> None:
        if is_deleted:
            path.unlink()
        else:
            path.write_text("")
        clock.now += TOKEN_CHECK_S

        assert token.check(request(headers={b"authorization": b"Bearer open-sesame"})) is None

    @pytest.mark.parametrize("content", ["", " \n", "two tokens", "\u00e9", "x" * 5000])
    def test_a_file_without_a_token_stops_the_start(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "token"
        path.write_text(content)

        with pytest.raises(OptionsError, match="does not hold one token"):
            BearerToken(str(path))

    def test_a_missing_file_stops_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(OptionsError, match="failed to read --http-auth-token-file"):
            BearerToken(str(tmp_path / "nope"))
