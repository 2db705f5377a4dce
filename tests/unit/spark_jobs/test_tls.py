"""TLS options of the source and the sink."""

import ssl

import pytest

from spark_jobs.tls import TlsSettings, parse_tls


def test_without_tls_there_are_no_settings() -> None:
    assert parse_tls({}) is None
    assert parse_tls({"tls": "false", "tlsinsecure": "true", "tlsca": "x"}) is None


@pytest.mark.parametrize("name", ["tlsCa", "tlsCert", "tlsKey"])
def test_a_file_that_would_not_be_used_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"option {name} needs tls=true"):
        parse_tls({name.lower(): "x"})


def test_a_context_verifies_unless_told_otherwise() -> None:
    strict = parse_tls({"tls": "true"})
    lenient = parse_tls({"tls": "true", "tlsinsecure": "true", "tlscert": "c", "tlskey": "k"})

    assert strict == TlsSettings()
    assert strict.context().verify_mode is ssl.CERT_REQUIRED
    assert lenient == TlsSettings(cert_file="c", key_file="k", verifies=False)
