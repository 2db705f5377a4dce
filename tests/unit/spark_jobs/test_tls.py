"""TLS options of the source and the sink."""

import ssl

from spark_jobs.tls import TlsSettings, parse_tls


def test_without_tls_there_are_no_settings() -> None:
    assert parse_tls({"tlsca": "x"}) is None


def test_a_context_verifies_unless_told_otherwise() -> None:
    strict = parse_tls({"tls": "true"})
    lenient = parse_tls({"tls": "true", "tlsinsecure": "true", "tlscert": "c", "tlskey": "k"})

    assert strict == TlsSettings()
    assert strict.context().verify_mode is ssl.CERT_REQUIRED
    assert lenient == TlsSettings(cert_file="c", key_file="k", verifies=False)
