import socket
from pathlib import Path

import pytest

from nsqadmin.cluster.upstream import Address, UpstreamTokens, clean, describe_error
from nsqd.config.token_file import TokenFile


@pytest.mark.parametrize(
    ("text", "host"), [("a:1", "a"), ("[::1]:4151", "::1"), ("10.0.0.1:4151", "10.0.0.1")]
)
def test_addresses_are_read_and_shown(text: str, host: str) -> None:
    address = Address.parse(text)

    assert address.host == host
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "a", ":1", "a:0", "a:70000", "http://a:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        Address.parse(text)


def test_a_token_goes_to_the_hosts_that_may_have_it(tmp_path: Path) -> None:
    (tmp_path / "nsqd").write_text("s3cret\n")
    (tmp_path / "lookupd").write_text("other")
    nsqd = TokenFile(str(tmp_path / "nsqd"), flag="nsqd-http-auth-token-file")
    lookupd = TokenFile(str(tmp_path / "lookupd"), flag="lookupd-auth-token-file")

    some = UpstreamTokens(nsqd=nsqd, nsqd_hosts=["*.example", "n1"])
    everybody = UpstreamTokens(nsqd=nsqd, lookupd=lookupd)

    sent = {"Authorization": "Bearer s3cret"}
    assert some.headers_for(Address("a.EXAMPLE", 1), is_node=True) == sent
    assert some.headers_for(Address("n1", 1), is_node=True) == sent
    assert some.headers_for(Address("evil", 1), is_node=True) == {}
    assert some.headers_for(Address("n1", 1), is_node=False) == {}
    assert everybody.headers_for(Address("evil", 1), is_node=True) == sent
    assert everybody.headers_for(Address("l", 1), is_node=False) == {
        "Authorization": "Bearer other"
    }


def test_errors_in_a_few_words() -> None:
    assert describe_error(socket.gaierror(-2, "Name or service not known")) == "no such host"
    assert describe_error(ConnectionRefusedError(111, "x")) == "connection refused"
    assert describe_error(OSError(113, "x")) == "no route to host"
    assert describe_error(TimeoutError()) == "timed out"
    assert describe_error(TimeoutError("no connection in 2 s")) == "no connection in 2 s"


def test_texts_from_outside_are_one_short_line() -> None:
    assert clean("a\nb\x1b[31mc") == "a b [31mc"
    assert len(clean("x" * 10_000)) == 300
