"""Addresses of nsqds."""

import pytest

from nsqd.client.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("example", "example", 4150, "example:4150"),
        ("10.0.0.1:99", "10.0.0.1", 99, "10.0.0.1:99"),
        ("[::1]:4150", "::1", 4150, "[::1]:4150"),
        ("[fe80::1%eth0]", "fe80::1%eth0", 4150, "[fe80::1%eth0]:4150"),
        ("/run/nsqd.sock", "/run/nsqd.sock", 0, "/run/nsqd.sock"),
        ("unix:/run/nsqd.sock", "/run/nsqd.sock", 0, "/run/nsqd.sock"),
    ],
)
def test_an_address_is_read_and_shown(text: str, host: str, port: int, shown: str) -> None:
    address = Address.parse(text)

    assert (address.host, address.port, str(address)) == (host, port, shown)
    assert Address.parse(address) is address
    assert address.is_unix == text.endswith(".sock")


@pytest.mark.parametrize("text", ["", ":4150", "a:b", "a:70000", "a:0", "::1", "a b:1", "a:1:2"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        Address.parse(text)
