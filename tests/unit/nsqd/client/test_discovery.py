"""The answers of nsqlookupd; asking is in tests/client/test_discovery.py."""

import pytest

from nsqd.client.address import Address
from nsqd.client.discovery import lookupd_url, make_headers, read_producers
from nsqd.client.errors import DiscoveryError

PRODUCER = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151}


@pytest.mark.parametrize(
    "answer",
    [
        {"producers": [PRODUCER], "channels": []},
        {"status_code": 200, "data": {"producers": [PRODUCER]}},
    ],
    ids=["now", "before 1.0"],
)
def test_producers_are_read_from_both_formats(answer: object) -> None:
    assert read_producers(answer) == {Address("10.0.0.1", 4150)}


@pytest.mark.parametrize("answer", [{}, {"producers": None}, {"producers": []}])
def test_no_producers_are_none(answer: object) -> None:
    assert read_producers(answer) == set()


@pytest.mark.parametrize(
    "answer",
    [None, [], "x", {"producers": 3}, {"producers": [{}]}, {"producers": [{"tcp_port": "x"}]}],
)
def test_another_answer_is_refused(answer: object) -> None:
    with pytest.raises(DiscoveryError):
        read_producers(answer)


def test_an_nsqlookupd_is_an_address_or_a_url() -> None:
    plain = lookupd_url("host", "/nodes")
    secure = lookupd_url("https://host:1/prefix/", "/nodes")

    assert (plain.scheme, plain.host, plain.port, plain.target) == ("http", "host", 4161, "/nodes")
    assert (secure.scheme, secure.port, secure.target) == ("https", 1, "/prefix/nodes")
    with pytest.raises(ValueError, match="not an address"):
        lookupd_url("no host", "/nodes")


@pytest.mark.parametrize(
    ("lookupd", "is_sent", "wanted"),
    [
        ("host", None, False),
        ("https://host", None, True),
        ("host", True, True),
        ("https://host", False, False),
    ],
)
def test_the_secret_goes_to_an_nsqlookupd_over_https_or_if_asked_for(
    lookupd: str,
    is_sent: bool | None,  # noqa: FBT001 - drawn
    wanted: bool,  # noqa: FBT001 - drawn
) -> None:
    url = lookupd_url(lookupd, "/nodes")

    headers = {"Authorization": "Bearer secret"} if wanted else {}
    assert make_headers(url, "secret", is_sent=is_sent) == headers
    assert make_headers(url, b"secret", is_sent=is_sent) == headers
    assert make_headers(url, None, is_sent=is_sent) == {}


def test_a_secret_is_sent_as_the_bytes_that_auth_has() -> None:
    url = lookupd_url("https://h:1", "/")

    headers = make_headers(url, "пароль", is_sent=None)

    assert headers == make_headers(url, "пароль".encode(), is_sent=None)
    assert headers["Authorization"].encode("latin-1") == "Bearer пароль".encode()
    for secret in ("a\nb", b"a\r"):
        with pytest.raises(ValueError, match="line break"):
            make_headers(url, secret, is_sent=None)
