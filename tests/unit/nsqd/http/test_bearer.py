"""The bearer token: who needs it, and what is said to those without it."""

from pathlib import Path

import pytest

from nsqd.config.token_file import TokenFile
from nsqd.http.bearer import BearerToken
from nsqd.http.routes import EMPTY, Request, Route, Target

ROUTE = Route(lambda request: EMPTY)


def request(
    method: bytes = b"POST",
    target: bytes = b"/pub?topic=t",
    headers: dict[bytes, bytes] | None = None,
) -> Request:
    return Request(method, Target(target), ROUTE, headers or {}, "peer", is_tls=False)


@pytest.fixture
def token(tmp_path: Path) -> BearerToken:
    path = tmp_path / "token"
    path.write_text("open-sesame\n")
    return BearerToken(TokenFile(str(path), flag="f"), guarded_paths=["/empty_topic"])


@pytest.mark.parametrize(
    "header", [b"Bearer open-sesame", b"bearer open-sesame", b"BEARER   open-sesame "]
)
def test_a_change_with_the_token_passes(token: BearerToken, header: bytes) -> None:
    assert token.check(request(headers={b"authorization": header})) is None


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer ", b"Bearer open", b"Bearer open-sesame2", b"Basic open-sesame",
     b"open-sesame", b"Bearer \xff", b"Bearer open-sesame open-sesame"],
)  # fmt: skip
def test_a_change_without_it_is_refused(token: BearerToken, header: bytes) -> None:
    reply = token.check(request(headers={b"authorization": header} if header else None))

    assert reply is not None
    assert (reply.status, reply.body) == (401, b'{"message":"UNAUTHORIZED"}')
    assert reply.headers["WWW-Authenticate"] == 'Bearer realm="nsqd"'


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"PATCH"])
def test_changing_methods_need_it(token: BearerToken, method: bytes) -> None:
    assert token.check(request(method)) is not None


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_reading_does_not(token: BearerToken, method: bytes) -> None:
    assert token.check(request(method, b"/stats")) is None


def test_a_get_that_changes_something_does(token: BearerToken) -> None:
    assert token.check(request(b"GET", b"/empty_topic?topic=t")) is not None
    assert token.check(request(b"GET", b"/empty%5Ftopic?topic=t")) is not None
