import base64
import json
import random
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from nsqd.tcp.auth import (
    MAX_DECISIONS,
    MAX_REPLY_BYTES,
    PUBLISH,
    SUBSCRIBE,
    AuthError,
    Authorization,
    AuthState,
    query_auth,
)
from nsqd.tcp.auth_patterns import Pattern

SECRET = "s3cr3t"


class FakeSocket:
    """Remembers what was sent and answers with the given bytes, then with the end of the stream."""

    def __init__(self, response: bytes, before_receive: Callable[[], None] | None = None) -> None:
        self.sent = b""
        self.timeouts: list[float | None] = []
        self.is_closed = False
        self._response = response
        self._before_receive = before_receive

    def setsockopt(self, *_: object) -> None:
        pass

    def settimeout(self, timeout_s: float | None) -> None:
        self.timeouts.append(timeout_s)

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv_into(self, buffer: memoryview) -> int:
        size = len(buffer)
        if self._before_receive is not None:
            self._before_receive()
            size = 1
        piece, self._response = self._response[:size], self._response[size:]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self.is_closed = True

    @property
    def request_line(self) -> str:
        return self.sent.split(b"\r\n", 1)[0].decode()

    @property
    def target(self) -> str:
        return self.request_line.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        lines = self.sent.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines)

    @property
    def body(self) -> bytes:
        return self.sent.split(b"\r\n\r\n", 1)[1]


@dataclass
class Network:
    """Which server answers with what, and what was asked of it."""

    answers: dict[tuple[str, int], FakeSocket | Exception] = field(default_factory=dict)
    connects: list[tuple[tuple[str, int], float | None]] = field(default_factory=list)
    handshakes: list[str] = field(default_factory=list)

    def serve(self, host: str, port: int, response: bytes) -> FakeSocket:
        server = FakeSocket(response)
        self.answers[host, port] = server
        return server

    def connect(
        self, address: tuple[str, int], timeout_s: float | None, _source: object
    ) -> FakeSocket:
        self.connects.append((address, timeout_s))
        answer = self.answers.get(address, ConnectionRefusedError(111, "Connection refused"))
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(socket, "create_connection", network.connect)
    return network


class FakeContext(ssl.SSLContext):
    """Shakes hands with fake sockets."""

    network: Network

    def wrap_socket(self, sock: Any, *_: Any, **options: Any) -> Any:
        self.network.handshakes.append(options["server_hostname"])
        return sock


@pytest.fixture
def context(network: Network) -> ssl.SSLContext:
    context = FakeContext(ssl.PROTOCOL_TLS_CLIENT)
    context.network = network
    return context


def response(payload: object, status: str = "200 OK") -> bytes:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(**changes: object) -> dict[str, object]:
    entry = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
    return {
        "ttl": 3600,
        "identity": "someone",
        "identity_url": "http://id.example/someone",
        "authorizations": [entry],
    } | changes


def ask(*addresses: str, **changes: Any) -> AuthState:
    arguments: dict[str, Any] = {
        "secret": SECRET.encode(),
        "remote_ip": "10.0.0.7",
        "common_name": "",
        "is_tls": False,
        "method": "get",
        "connect_timeout_s": 2.0,
        "request_timeout_s": 5.0,
        "ssl_context": None,
        "now": 1000.0,
    }
    return query_auth(addresses or ("auth:4181",), **(arguments | changes))


# What is asked


def test_the_question_is_a_get_of_auth_with_sorted_parameters(network: Network) -> None:
    #
    server = network.serve("auth", 4181, response(answer()))

    ask()

    assert server.request_line == (
        "GET /auth?common_name=&remote_ip=10.0.0.7&secret=s3cr3t&tls=false HTTP/1.1"
    )
    assert server.headers["Accept"] == "application/vnd.nsq; version=1.0"
    assert server.headers["Host"] == "auth:4181"
    assert server.is_closed


def test_parameters_are_form_encoded(network: Network) -> None:
    #
    server = network.serve("auth", 4181, response(answer()))

    ask(secret=b"a b&=\xff~/", common_name="Jö&rg", is_tls=True, remote_ip="::1")

    assert server.target == (
        "/auth?common_name=J%C3%B6%26rg&remote_ip=%3A%3A1&secret=a+b%26%3D%FF~%2F&tls=true"
    )


@pytest.mark.parametrize(
    ("address", "host", "port", "start"),
    [
        ("auth:4181", "auth", 4181, "/auth?"),
        ("auth", "auth", 80, "/auth?"),
        ("[::1]:4181", "::1", 4181, "/auth?"),
        ("http://auth:99/my/path", "auth", 99, "/my/path?"),
        ("http://auth", "auth", 80, "/?"),
        ("http://auth/p?x=1", "auth", 80, "/p?x=1?"),
    ],
)
def test_the_address_is_used_as_given(
    network: Network, address: str, host: str, port: int, start: str
) -> None:
    #
    server = network.serve(host, port, response(answer()))

    ask(address)

    assert server.target.startswith(f"{start}common_name=")


def test_post_sends_arrays_in_json(network: Network) -> None:
    #
    server = network.serve("auth", 4181, response(answer()))

    ask("http://auth:4181/custom", method="post", secret="geh\N{SNOWMAN}eim", common_name="cn")

    assert server.request_line == "POST /custom HTTP/1.1"
    assert server.headers["Content-Type"] == "application/json"
    assert server.headers["Content-Length"] == str(len(server.body))
    assert b": " not in server.body
    assert json.loads(server.body) == {
        "common_name": ["cn"],
        "remote_ip": ["10.0.0.7"],
        "secret": ["geh\N{SNOWMAN}eim"],
        "tls": ["false"],
    }
    assert list(json.loads(server.body)) == ["common_name", "remote_ip", "secret", "tls"]


def test_a_secret_that_is_no_text_is_replaced_in_json(network: Network) -> None:
    server = network.serve("auth", 4181, response(answer()))

    ask(method="post", secret=b"a\xff")

    assert json.loads(server.body)["secret"] == ["a\ufffd"]


def test_credentials_of_the_url_are_sent_as_basic_auth(network: Network) -> None:
    server = network.serve("auth", 80, response(answer()))

    ask("http://nsqd:p%40ss@auth/auth")

    scheme, _, credentials = server.headers["Authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(credentials) == b"nsqd:p@ss"


def test_timeouts_are_those_given(network: Network) -> None:
    server = network.serve("auth", 4181, response(answer()))

    ask(connect_timeout_s=2.5, request_timeout_s=7.0)

    assert network.connects == [(("auth", 4181), 2.5)]
    assert all(timeout is not None and 0 < timeout <= 7.0 for timeout in server.timeouts)
    assert server.timeouts


def test_zero_means_no_timeout(network: Network) -> None:
    server = network.serve("auth", 4181, response(answer()))

    ask(connect_timeout_s=0.0, request_timeout_s=0.0)

    assert network.connects == [(("auth", 4181), None)]
    assert set(server.timeouts) == {None}


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [50.0]

    def wait_a_second() -> None:
        clock[0] += 1.0

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    server = FakeSocket(response(answer()), before_receive=wait_a_second)
    network.answers["auth", 4181] = server

    with pytest.raises(AuthError, match="timed out"):
        ask(request_timeout_s=5.0)

    assert clock[0] == 55.0
    assert server.timeouts == [5.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert server.is_closed


# https


def test_https_is_spoken_with_the_given_context(network: Network, context: ssl.SSLContext) -> None:
    server = network.serve("auth", 443, response(answer()))

    ask("https://auth/auth", ssl_context=context)

    assert network.handshakes == ["auth"]
    assert server.target.startswith("/auth?")


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_server_that_wants_https_is_asked_there(
    network: Network, context: ssl.SSLContext, method: str
) -> None:
    plain = network.serve("auth", 4181, response({"https_port": 4182}, "403 Forbidden"))
    secure = network.serve("auth", 4182, response(answer()))

    state = ask(ssl_context=context, method=method)

    assert state.identity == "someone"
    assert network.handshakes == ["auth"]
    assert (secure.target, secure.body) == (plain.target, plain.body)


def test_https_is_tried_once(network: Network, context: ssl.SSLContext) -> None:
    for port in (4181, 4182):
        network.serve("auth", port, response({"https_port": 4182}, "403 Forbidden"))

    with pytest.raises(AuthError, match="status 403"):
        ask(ssl_context=context)

    assert len(network.connects) == 2


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"https_port":0}', b'{"https_port":70000}', b'{"https_port":"1"}']
)
def test_a_plain_403_is_a_failure(network: Network, body: bytes) -> None:
    network.serve("auth", 4181, response(body, "403 Forbidden"))

    with pytest.raises(AuthError, match="status 403"):
        ask()

    assert len(network.connects) == 1


# Servers that fail


@pytest.mark.parametrize("start", [0, 1, 2])
def test_any_server_that_answers_suffices(
    network: Network, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    #
    monkeypatch.setattr(random, "randrange", lambda count: start)
    network.serve("b", 4181, response(answer()))

    ask("a:4181", "b:4181", "c:4181")

    asked = [host for (host, _), _ in network.connects]
    assert asked == {0: ["a", "b"], 1: ["b"], 2: ["c", "a", "b"]}[start]


def test_the_error_names_every_server(network: Network) -> None:
    network.serve("b", 4181, response(b"", "500 Internal Server Error"))

    with pytest.raises(AuthError) as caught:
        ask("a:4181", "http://user:password@b:4181/auth?key=value")

    assert sorted(str(caught.value).split("; ")) == [
        "failed to auth against a:4181 - Connection refused",
        "failed to auth against b:4181/auth - status 500",
    ]


def test_without_servers_nobody_is_let_in() -> None:
    with pytest.raises(AuthError, match="no auth servers"):
        query_auth(
            (),
            secret=b"x",
            remote_ip="",
            common_name="",
            is_tls=False,
            method="get",
            connect_timeout_s=1.0,
            request_timeout_s=1.0,
            ssl_context=None,
            now=0.0,
        )


@pytest.mark.parametrize(
    "address", ["ftp://auth/x", "http://", "http://auth:99999/", "http://auth:x/", "http://[::1"]
)
def test_an_address_that_is_none_is_a_failure(network: Network, address: str) -> None:
    with pytest.raises(AuthError, match="failed to auth against"):
        ask(address)

    assert network.connects == []


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect"])
def test_redirects_are_not_followed(network: Network, status: str) -> None:
    elsewhere = network.serve("evil", 80, response(answer()))
    head = f"HTTP/1.1 {status}\r\nLocation: http://evil/auth\r\nContent-Length: 0\r\n\r\n"
    network.serve("auth", 4181, head.encode())

    with pytest.raises(AuthError, match="status 30"):
        ask()

    assert elsewhere.sent == b""


def test_a_reply_without_end_is_cut(network: Network) -> None:
    network.serve("auth", 4181, b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (MAX_REPLY_BYTES + 10))

    with pytest.raises(AuthError, match="reply of more than 1048576 bytes"):
        ask()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
    ],
)
def test_a_server_that_speaks_no_http_is_a_failure(network: Network, raw: bytes) -> None:
    network.serve("auth", 4181, raw)

    with pytest.raises(AuthError, match="failed to auth against auth:4181 - "):
        ask()


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ValueError(f"GET /auth?secret={SECRET}"),
        OSError(),
    ],
)
def test_the_secret_is_in_no_error(network: Network, failure: Exception) -> None:
    network.answers["auth", 4181] = failure

    with pytest.raises(AuthError) as caught:
        ask()

    assert SECRET not in str(caught.value)
    assert not str(caught.value).endswith("- ")


def test_a_path_that_cannot_be_sent_does_not_reveal_the_secret(network: Network) -> None:
    network.serve("auth", 80, response(answer()))

    with pytest.raises(AuthError) as caught:
        ask("http://auth/a b")

    assert SECRET not in str(caught.value)


# Replies


def test_the_reply_is_read(network: Network) -> None:
    #
    entries = [
        {"topic": "^a$", "channels": ["x", "y"], "permissions": ["subscribe"]},
        {"topic": "b", "channels": [], "permissions": ["publish", "subscribe"]},
    ]
    network.serve("auth", 4181, response(answer(ttl=60, authorizations=entries)))

    state = ask(now=1000.0)

    assert (state.identity, state.identity_url) == ("someone", "http://id.example/someone")
    assert state.permission_count == 2
    assert state.expires_at == 1060.0
    first, second = state.authorizations
    assert (first.topic.text, [pattern.text for pattern in first.channels]) == ("^a$", ["x", "y"])
    assert first.permissions == {SUBSCRIBE}
    assert second.permissions == {PUBLISH, SUBSCRIBE}


@pytest.mark.parametrize("extra", [{"authorizations": []}, {"authorizations": None}])
def test_a_reply_may_hold_no_authorization(network: Network, extra: dict[str, object]) -> None:
    #
    network.serve("auth", 4181, response(answer(**extra)))

    assert ask().permission_count == 0


def test_keys_match_whatever_their_case_and_null_is_absent(network: Network) -> None:
    entry = {"Topic": "t", "channels": None}
    payload = {"TTL": 5, "Identity": None, "Authorizations": [entry]}
    network.serve("auth", 4181, response(payload))

    state = ask()

    assert (state.identity, state.permission_count) == ("", 1)
    assert state.authorizations[0].channels == ()


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"this is not json", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"ttl":NaN}', "not JSON"),
        (b'{"ttl":' + b"9" * 5_000 + b"}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        ({}, "ttl is not positive"),
        (answer(ttl=0), "ttl is not positive"),
        (answer(ttl=-5), "ttl is not positive"),
        (answer(ttl=1 << 63), "ttl is not positive"),
        (answer(ttl=1.5), "ttl is not of type int"),
        (answer(ttl="60"), "ttl is not of type int"),
        (answer(ttl=True), "ttl is not of type int"),
        (answer(identity=7), "identity is not of type str"),
        (answer(authorizations={}), "authorizations is not of type list"),
        (answer(authorizations=["x"]), "not a JSON object"),
        (answer(authorizations=[{"permissions": ["fly"]}]), "unknown permission"),
        (answer(authorizations=[{"permissions": [1]}]), "permissions are not strings"),
        (answer(authorizations=[{"permissions": "publish"}]), "permissions is not of type list"),
        (answer(authorizations=[{"topic": "("}]), r"bad pattern '\(': missing closing"),
        (answer(authorizations=[{"channels": ["a**"]}]), r"bad pattern 'a\*\*'"),
        (answer(authorizations=[{"topic": 5}]), "topic is not of type str"),
    ],
)
def test_an_unusable_reply_is_a_failure(network: Network, payload: object, text: str) -> None:
    #
    network.serve("auth", 4181, response(payload))

    with pytest.raises(AuthError, match=text):
        ask()


# Rights


def authorization(topic: str, channels: list[str], *permissions: str) -> Authorization:
    return Authorization(Pattern(topic), tuple(map(Pattern, channels)), frozenset(permissions))


def state_of(*entries: Authorization, expires_at: float = 10.0) -> AuthState:
    return AuthState("someone", "", entries, expires_at)


@pytest.mark.parametrize(
    ("entry", "permission", "topic", "channel", "is_allowed"),
    [
        (authorization("orders", [".*"], PUBLISH), PUBLISH, "orders", "", True),
        (authorization("orders", [".*"], PUBLISH), PUBLISH, "reorders.eu", "", True),
        (authorization("^orders$", [".*"], PUBLISH), PUBLISH, "reorders", "", False),
        (authorization("orders", [".*"], PUBLISH), SUBSCRIBE, "orders", "c", False),
        (authorization("orders", [".*"], SUBSCRIBE), PUBLISH, "orders", "", False),
        (authorization("orders", ["^c$"], PUBLISH), PUBLISH, "orders", "", False),
        (authorization("orders", ["^c$"], SUBSCRIBE), SUBSCRIBE, "orders", "c", True),
        (authorization("orders", ["^c$"], SUBSCRIBE), SUBSCRIBE, "orders", "d", False),
        (authorization("orders", ["^c$", "d"], SUBSCRIBE), SUBSCRIBE, "orders", "d", True),
        (authorization("orders", [], PUBLISH, SUBSCRIBE), PUBLISH, "orders", "", False),
        (authorization("orders", [], PUBLISH, SUBSCRIBE), SUBSCRIBE, "orders", "c", False),
        (authorization(".*", [".*"]), PUBLISH, "orders", "", False),
    ],
)
def test_an_entry_allows_what_it_says(
    entry: Authorization, permission: str, topic: str, channel: str, *, is_allowed: bool
) -> None:
    #
    assert state_of(entry).is_allowed(permission, topic, channel) is is_allowed


def test_one_entry_that_allows_it_is_enough() -> None:
    state = state_of(
        authorization("a", [".*"], PUBLISH),
        authorization("b", [".*"], PUBLISH),
    )

    assert state.is_allowed(PUBLISH, "b", "")
    assert not state.is_allowed(PUBLISH, "c", "")


def test_a_decision_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def allow(_: Authorization, *question: str) -> bool:
        asked.append(question)
        return True

    state = state_of(authorization("a", [".*"], PUBLISH))
    monkeypatch.setattr(Authorization, "allows", allow)

    for _ in range(3):
        assert state.is_allowed(PUBLISH, "a", "")
    assert asked == [(PUBLISH, "a", "")]

    for number in range(MAX_DECISIONS):
        state.is_allowed(PUBLISH, f"t{number}", "")
    asked.clear()
    state.is_allowed(PUBLISH, "a", "")
    assert asked == [(PUBLISH, "a", "")]


def test_an_answer_expires() -> None:
    #
    state = state_of(expires_at=10.0)

    assert not state.is_expired(9.9)
    assert state.is_expired(10.0)


def test_the_question_can_be_parsed_back(network: Network) -> None:
    server = network.serve("auth", 4181, response(answer()))

    ask(secret="ümläut & more+", common_name="a=b")

    assert dict(parse_qsl(urlsplit(server.target).query, keep_blank_values=True)) == {
        "common_name": "a=b",
        "remote_ip": "10.0.0.7",
        "secret": "ümläut & more+",
        "tls": "false",
    }
