import contextlib
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.runtime import tls
from nsqd.runtime.tls import (
    MAX_RECORDS,
    TlsCodec,
    TlsConfigError,
    build_client_context,
    build_server_context,
    describe_tls_error,
)
from tests.support.certs import Credentials, make_authority, make_client, make_server

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
every_version = pytest.mark.parametrize("version", VERSIONS)
POLICIES = ["require", "require-verify"]


@dataclass(frozen=True, slots=True)
class Party:
    directory: Path
    authority: Credentials
    server: Credentials
    client: Credentials
    stranger: Credentials


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Party:
    directory = tmp_path_factory.mktemp("certs")
    authority = make_authority(directory)
    return Party(
        directory,
        authority,
        make_server(directory, authority),
        make_client(directory, "known.example", authority=authority),
        make_client(directory, "stranger.example"),
    )


def server_context(
    party: Party, policy: str = "", min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1
) -> ssl.SSLContext:
    return build_server_context(
        party.server.cert_file,
        party.server.key_file,
        client_auth_policy=policy,
        root_ca_file=party.authority.cert_file,
        min_version=min_version,
    )


class Client:
    """The other end, as a client library would be."""

    def __init__(
        self,
        party: Party,
        credentials: Credentials | None = None,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        ciphers: str | None = None,
        first: "Client | None" = None,
    ) -> None:
        """Args: first: a client whose session is to be resumed."""
        context = first.tls.context if first else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(party.authority.cert_file)
        context.minimum_version = context.maximum_version = version
        if ciphers:
            context.set_ciphers(ciphers)
        if credentials:
            context.load_cert_chain(credentials.cert_file, credentials.key_file)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject = context.wrap_bio(
            *(self.incoming, self.outgoing),
            server_hostname="localhost",
            session=first.tls.session if first else None,
        )

    def shake_hands(self, server: TlsCodec) -> None:
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            if sent := self.outgoing.read():
                assert server.feed(sent) == b""
            self.incoming.write(server.take_outgoing())
            if server.handshake_done:
                self.tls.do_handshake()
                return
        raise AssertionError("the handshake does not end")

    def send(self, plain: bytes) -> bytes:
        self.tls.write(plain)
        return self.outgoing.read()

    def receive(self, ciphertext: bytes) -> bytes:
        self.incoming.write(ciphertext)
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.tls.read():
                pieces.append(piece)
        return b"".join(pieces)


def connect(
    party: Party,
    policy: str = "",
    credentials: Credentials | None = None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> tuple[TlsCodec, Client]:
    server, client = TlsCodec(server_context(party, policy)), Client(party, credentials, version)
    client.shake_hands(server)
    return server, client


@every_version
def test_plaintext_goes_both_ways(party: Party, version: ssl.TLSVersion) -> None:
    # W-119
    server, client = connect(party, version=version)

    assert server.feed(client.send(b"NOP\n")) == b"NOP\n"
    assert client.receive(server.encode(b"OK")) == b"OK"


def test_more_than_a_record_goes_through_at_once(party: Party) -> None:
    server, client = connect(party)
    plain = bytes(range(256)) * 1000

    assert client.receive(server.encode(plain)) == plain
    assert server.feed(client.send(plain[:16_000]) + client.send(b"end")) == plain[:16_000] + b"end"


@given(plain=st.binary(min_size=1, max_size=200), cut=st.integers(0, 300))
@settings(max_examples=30)
def test_any_split_of_the_ciphertext_gives_the_same(
    shared_connection: tuple[TlsCodec, Client], plain: bytes, cut: int
) -> None:
    server, client = shared_connection
    ciphertext = client.send(plain)

    assert server.feed(ciphertext[:cut]) + server.feed(ciphertext[cut:]) == plain


@pytest.fixture(scope="module")
def shared_connection(party: Party) -> tuple[TlsCodec, Client]:
    return connect(party)


def test_tiny_records_are_decrypted_some_at_a_time(party: Party) -> None:
    server, client = connect(party)
    ciphertext = b"".join(client.send(b"x") for _ in range(2 * MAX_RECORDS + 1))

    lengths = [len(server.feed(ciphertext))]
    while server.has_pending:
        lengths.append(len(server.feed(b"")))

    assert lengths == [MAX_RECORDS, MAX_RECORDS, 1]


def test_data_sent_with_the_end_of_the_handshake_is_not_lost(party: Party) -> None:
    server, client = TlsCodec(server_context(party)), Client(party)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.tls.do_handshake()
    server.feed(client.outgoing.read())
    client.incoming.write(server.take_outgoing())
    client.tls.do_handshake()

    plain = server.feed(client.outgoing.read() + client.send(b"NOP\n"))

    assert plain == b"NOP\n"


def test_a_handshake_of_single_bytes_succeeds(party: Party) -> None:
    server, client = TlsCodec(server_context(party)), Client(party)

    with contextlib.suppress(ssl.SSLWantReadError):
        client.tls.do_handshake()
    for byte in client.outgoing.read():
        server.feed(bytes([byte]))
    client.incoming.write(server.take_outgoing())
    client.tls.do_handshake()
    for byte in client.outgoing.read():
        server.feed(bytes([byte]))

    assert server.handshake_done


@pytest.mark.parametrize("data", [b"  V2IDENTIFY\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64])
def test_bytes_that_are_no_tls_fail_and_leave_the_line_clear(party: Party, data: bytes) -> None:
    # W-120: the error frame follows in the clear, so no alert may stand before it.
    codec = TlsCodec(server_context(party))

    with pytest.raises(ssl.SSLError):
        codec.feed(data)

    assert codec.take_outgoing() == b""
    assert codec.close() == b""


@given(data=st.binary(max_size=100))
@settings(max_examples=50)
def test_garbage_never_shakes_hands(
    shared_connection: tuple[TlsCodec, Client], party: Party, data: bytes
) -> None:
    codec = TlsCodec(server_context(party))

    with contextlib.suppress(ssl.SSLError):
        assert codec.feed(data) == b""

    assert not codec.handshake_done


def test_a_damaged_record_is_refused(party: Party) -> None:
    server, client = connect(party)
    record = bytearray(client.send(b"NOP\n"))
    record[-1] ^= 1

    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        server.feed(bytes(record))

    assert server.take_outgoing() != b""


def test_the_peers_farewell_is_noticed(party: Party) -> None:
    server, client = connect(party)
    last_words = client.send(b"CLS\n")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.tls.unwrap()

    assert server.feed(last_words + client.outgoing.read()) == b"CLS\n"
    assert server.is_peer_closed
    assert client.receive(server.encode(b"CLOSE_WAIT")) == b"CLOSE_WAIT"


def test_our_farewell_is_understood(party: Party) -> None:
    server, client = connect(party)

    client.incoming.write(server.close())

    assert client.tls.read() == b""
    assert not server.is_peer_closed


def test_no_farewell_before_the_handshake(party: Party) -> None:
    assert TlsCodec(server_context(party)).close() == b""


# What stats show of a connection


@pytest.mark.parametrize(("version", "text"), [*zip(VERSIONS, ["TLS1.2", "TLS1.3"], strict=True)])
def test_the_version_is_named_as_nsqd_does(
    party: Party, version: ssl.TLSVersion, text: str
) -> None:
    assert connect(party, version=version)[0].version == text


@pytest.mark.parametrize(
    ("openssl_name", "iana_name"),
    [
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES128-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ],
)
def test_the_cipher_suite_has_its_iana_name(
    party: Party, openssl_name: str, iana_name: str
) -> None:
    server = TlsCodec(server_context(party))
    Client(party, version=ssl.TLSVersion.TLSv1_2, ciphers=openssl_name).shake_hands(server)

    assert server.cipher_suite == iana_name


def test_the_cipher_suites_of_tls_1_3_are_numbers(party: Party) -> None:
    server, _ = connect(party)

    assert server.cipher_suite in {"Unknown 4865", "Unknown 4866", "Unknown 4867"}


def test_an_unfinished_handshake_has_no_version_of_a_client(party: Party) -> None:
    codec = TlsCodec(server_context(party))

    assert (codec.cipher_suite, codec.peer_common_name) == ("", "")


# Client certificates


@every_version
def test_no_policy_asks_for_no_certificate(party: Party, version: ssl.TLSVersion) -> None:
    server, _ = connect(party, "", party.client, version)

    assert server.peer_common_name == ""


@every_version
@pytest.mark.parametrize("policy", POLICIES)
def test_a_client_without_certificate_is_refused(
    party: Party, policy: str, version: ssl.TLSVersion
) -> None:
    # W-128
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        connect(party, policy, None, version)


@every_version
@pytest.mark.parametrize("policy", POLICIES)
def test_a_certificate_of_the_authority_is_accepted(
    party: Party, policy: str, version: ssl.TLSVersion
) -> None:
    server, client = connect(party, policy, party.client, version)

    assert server.peer_common_name == "known.example"
    assert server.feed(client.send(b"NOP\n")) == b"NOP\n"


@every_version
def test_require_accepts_a_stranger(party: Party, version: ssl.TLSVersion) -> None:
    server, _ = connect(party, "require", party.stranger, version)

    assert server.peer_common_name == "stranger.example"


@every_version
def test_require_verify_refuses_a_stranger(party: Party, version: ssl.TLSVersion) -> None:
    # W-128
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(party, "require-verify", party.stranger, version)


def test_only_require_accepts_an_expired_certificate(party: Party) -> None:
    expired = make_client(
        party.directory, "old.example", authority=party.authority, not_after="20210101000000Z"
    )

    assert connect(party, "require", expired)[0].peer_common_name == "old.example"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(party, "require-verify", expired)


def test_require_does_not_need_an_authority(party: Party) -> None:
    context = build_server_context(
        party.server.cert_file,
        party.server.key_file,
        client_auth_policy="require",
        root_ca_file="",
        min_version=ssl.TLSVersion.TLSv1_2,
    )
    server = TlsCodec(context)

    Client(party, party.stranger).shake_hands(server)

    assert server.peer_common_name == "stranger.example"


def test_require_in_one_context_does_not_weaken_another(party: Party) -> None:
    server_context(party, "require")

    with pytest.raises(ssl.SSLCertVerificationError):
        connect(party, "require-verify", party.stranger)


def test_require_verify_without_authorities_trusts_the_systems(party: Party) -> None:
    context = build_server_context(
        party.server.cert_file,
        party.server.key_file,
        client_auth_policy="require-verify",
        root_ca_file="",
        min_version=ssl.TLSVersion.TLSv1_2,
    )

    with pytest.raises(ssl.SSLCertVerificationError):
        Client(party, party.client).shake_hands(TlsCodec(context))


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), ""), (("first", "last"), "last"), (("Ünïcode 名",), "Ünïcode 名"), (("a\0b",), "a\0b")],
)
def test_the_last_common_name_counts(party: Party, names: tuple[str, ...], expected: str) -> None:
    #
    credentials = make_client(party.directory, *names)

    assert connect(party, "require", credentials)[0].peer_common_name == expected


def test_a_certificate_that_cannot_be_read_is_refused(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ssl.SSLObject) -> None:
        raise ValueError("odd date")

    monkeypatch.setattr(ssl.SSLObject, "getpeercert", fail)

    with pytest.raises(ssl.SSLError, match="client certificate cannot be read: odd date"):
        connect(party, "require-verify", party.client)


def test_a_python_without_openssls_symbols_refuses_the_policy(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_ssl", SimpleNamespace(__file__=None))

    with pytest.raises(TlsConfigError, match="client auth policy require: not possible with this"):
        server_context(party, "require")


def test_another_python_refuses_the_policy(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="pypy"))

    with pytest.raises(TlsConfigError, match="client auth policy require: not possible on"):
        server_context(party, "require")


def test_another_openssl_than_pythons_own_is_not_used(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl, "OPENSSL_VERSION_NUMBER", 0x30900000)

    with pytest.raises(TlsConfigError, match="not laid out as expected"):
        server_context(party, "require")


@pytest.mark.parametrize(
    ("policy", "min_version", "is_refused"),
    [
        ("", ssl.TLSVersion.TLSv1_2, False),
        ("require-verify", ssl.TLSVersion.TLSv1_2, True),
        ("require-verify", ssl.TLSVersion.TLSv1_3, False),
    ],
)
def test_a_session_cache_that_stays_on_is_refused_where_it_lets_clients_in(
    party: Party,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    min_version: ssl.TLSVersion,
    is_refused: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr(tls, "_ssl", SimpleNamespace(__file__=None))

    if is_refused:
        with pytest.raises(TlsConfigError, match="client auth policy require-verify: not possible"):
            server_context(party, policy, min_version)
    else:
        server_context(party, policy, min_version)


@every_version
@pytest.mark.parametrize("policy", ["", *POLICIES])
def test_no_session_is_resumed(party: Party, policy: str, version: ssl.TLSVersion) -> None:
    context = server_context(party, policy)
    first = Client(party, party.client, version)
    open_still = TlsCodec(context)  # OpenSSL drops the session of a connection that breaks
    first.shake_hands(open_still)

    second = Client(party, party.client, version, first=first)
    second.shake_hands(TlsCodec(context))

    assert second.tls.session_reused is False
    assert context.session_stats()["number"] == 0


def test_a_policy_that_has_no_effect_stops_the_start(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_accept_any_certificate", lambda context: None)

    with pytest.raises(TlsConfigError, match="does not work with this build"):
        server_context(party, "require")


# Options


def test_an_older_version_than_the_minimum_is_refused(party: Party) -> None:
    context = build_server_context(
        party.server.cert_file,
        party.server.key_file,
        client_auth_policy="",
        root_ca_file="",
        min_version=ssl.TLSVersion.TLSv1_3,
    )
    client = Client(party, version=ssl.TLSVersion.TLSv1_2)

    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        client.shake_hands(TlsCodec(context))


@every_version
@pytest.mark.parametrize(
    "min_version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2]
)
def test_newer_versions_than_the_minimum_are_accepted(
    party: Party, min_version: ssl.TLSVersion, version: ssl.TLSVersion
) -> None:
    server = TlsCodec(server_context(party, min_version=min_version))

    Client(party, version=version).shake_hands(server)

    assert server.handshake_done


def test_an_unknown_policy_is_refused(party: Party) -> None:
    with pytest.raises(TlsConfigError, match="unknown client auth policy 'sometimes'"):
        server_context(party, "sometimes")


def build_with(cert: str, key: str, root_ca_file: str = "") -> None:
    build_server_context(
        cert,
        key,
        client_auth_policy="",
        root_ca_file=root_ca_file,
        min_version=ssl.TLSVersion.TLSv1_2,
    )


def test_errors_name_the_file(party: Party, tmp_path: Path) -> None:
    cert, key = party.server.cert_file, party.server.key_file
    missing = str(tmp_path / "missing.pem")
    empty = tmp_path / "empty.pem"
    empty.touch()

    with pytest.raises(TlsConfigError, match=rf"open {missing}: No such file or directory"):
        build_with(missing, key)
    with pytest.raises(TlsConfigError, match=rf"open {missing}: No such file or directory"):
        build_with(cert, missing)
    with pytest.raises(TlsConfigError, match=rf"open {missing}: No such file or directory"):
        build_with(cert, key, missing)
    with pytest.raises(TlsConfigError, match=rf"authorities {empty}: "):
        build_with(cert, key, str(empty))
    with pytest.raises(TlsConfigError, match=rf"certificate {empty} and key"):
        build_with(str(empty), key)
    with pytest.raises(TlsConfigError, match=r"open : No such file or directory"):
        build_with("", key)
    with pytest.raises(TlsConfigError, match=r"null"):
        build_with("a\0b", key)


def test_a_key_of_another_certificate_is_refused(party: Party) -> None:
    with pytest.raises(TlsConfigError, match="key values mismatch"):
        build_with(party.server.cert_file, party.client.key_file)


def test_an_encrypted_key_is_refused_without_asking(party: Party, tmp_path: Path) -> None:
    key = tmp_path / "encrypted.key"
    lines = Path(party.server.key_file).read_text().splitlines()
    header = ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF"]
    key.write_text("\n".join([lines[0], *header, "", *lines[1:], ""]))

    with pytest.raises(TlsConfigError, match="the private key is encrypted"):
        build_with(party.server.cert_file, str(key))


def test_our_requests_verify_the_server(party: Party) -> None:
    trusting = build_client_context(party.authority.cert_file, ssl.TLSVersion.TLSv1_2)
    wary = build_client_context("", ssl.TLSVersion.TLSv1_2)

    for context, is_accepted in ((trusting, True), (wary, False)):
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        server = TlsCodec(server_context(party))
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        server.feed(to_server.read())
        to_client.write(server.take_outgoing())
        expectation = (
            contextlib.nullcontext() if is_accepted else pytest.raises(ssl.SSLCertVerificationError)
        )
        with expectation:
            client.do_handshake()


def test_our_requests_need_good_options(tmp_path: Path) -> None:
    with pytest.raises(TlsConfigError, match="No such file"):
        build_client_context(str(tmp_path / "missing.pem"), ssl.TLSVersion.TLSv1_2)


def test_tls_errors_are_described_in_words(party: Party) -> None:
    with pytest.raises(ssl.SSLError) as no_tls:
        TlsCodec(server_context(party)).feed(b"  V2IDENTIFY\n")
    with pytest.raises(ssl.SSLError) as stranger:
        connect(party, "require-verify", party.stranger)

    assert describe_tls_error(no_tls.value) == "wrong version number"
    assert describe_tls_error(stranger.value).startswith("certificate verify failed: self")
    assert describe_tls_error(ssl.SSLError(1, "[SSL] PEM lib (_ssl.c:3905)")) == "PEM lib"
