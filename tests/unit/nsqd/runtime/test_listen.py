"""What an address means; sockets that really listen are in tests/wire."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.runtime.listen import ListenError, format_address, listen, port_of, split_address


@pytest.mark.parametrize(
    ("address", "host_port"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        ("0.0.0.0:4150", ("0.0.0.0", 4150)),
        ("localhost:0", ("localhost", 0)),
        (":4150", ("", 4150)),
        ("[::1]:4150", ("::1", 4150)),
        ("[::]:4150", ("::", 4150)),
        ("[]:4150", ("", 4150)),
        ("host:65536", ("host", 65536)),
    ],
)
def test_host_and_port_are_tcp(address: str, host_port: tuple[str, int]) -> None:
    assert split_address(address) == host_port


@pytest.mark.parametrize(
    "address",
    [
        "",
        "4150",
        "/run/nsqd.sock",
        "./nsqd.sock",
        "nsqd.sock",
        "host:",
        "host:port",
        "host:-1",
        "host:+1",
        "host: 1",
        "host:123456",
        "host:4150\n",
        "::1:4150",
        "[::1]",
        "[::1:4150",
        "host:٤١٥٠",
    ],
)
def test_everything_else_is_the_path_of_a_unix_socket(address: str) -> None:
    # O-17
    assert split_address(address) is None


@given(st.text(alphabet="ab.-1", max_size=10), st.integers(0, 99999))
def test_any_host_without_colons_may_have_a_port(host: str, port: int) -> None:
    assert split_address(f"{host}:{port}") == (host, port)


@pytest.mark.parametrize("address", ["127.0.0.1:65536", "127.0.0.1:99999", ":70000"])
def test_a_port_that_does_not_exist_is_refused_before_any_socket_is_made(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # O-11
    monkeypatch.delattr(socket, "create_server")

    with pytest.raises(ListenError) as caught:
        listen(address)

    port = address.rpartition(":")[2]
    assert str(caught.value) == f"listen ({address}) failed - invalid port {port}"


def test_an_unknown_host_is_named_with_the_resolvers_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # O-11
    def fail(*_arguments: object, **_options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    with pytest.raises(ListenError) as caught:
        listen("nowhere.invalid:4150")

    text = "listen (nowhere.invalid:4150) failed - name or service not known"
    assert str(caught.value).lower() == text


def test_without_a_listener_the_port_is_0() -> None:
    # H-14
    assert port_of(None) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (("127.0.0.1", 4150), "127.0.0.1:4150"),
        (("::1", 4150, 0, 0), "[::1]:4150"),
        ("/run/nsqd.sock", "/run/nsqd.sock"),
        ("", "@"),
        (None, "@"),
    ],
)
def test_addresses_are_shown_as_by_go(name: object, expected: str) -> None:
    assert format_address(name) == expected
