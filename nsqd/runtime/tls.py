"""TLS: contexts built from the options, and TLS as a codec around a connection's bytes.

A connection turns to TLS in mid-stream, after IDENTIFY, and may compress inside it. So TLS is one
more codec that takes bytes and returns bytes, like those of `nsqd.protocol.compression`; it needs
no transport of its own.

Two policies ask clients for certificates. `require-verify` is what OpenSSL does by itself.
`require` wants any certificate, trusted or not. Python's ssl module can express neither that nor a
server without a session cache: both are set in OpenSSL itself, see `_find_openssl`.
"""

import _ssl
import contextlib
import ctypes
import functools
import re
import ssl
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final, Self, cast

# The most plain bytes one TLS record holds.
_RECORD_BYTES: Final = 16_384
# So many records are decrypted at once: those of a whole read, unless they are tiny.
MAX_RECORDS: Final = 128
_Subject = tuple[tuple[tuple[str, str], ...], ...]
_OPENSSL_SUITE: Final = re.compile(
    r"(?:(ECDHE-ECDSA|ECDHE-RSA|DHE-RSA)-)?"
    r"(?:AES(?P<bits>128|256)-(?P<mode>GCM-)?(?P<hash>SHA(?:256|384)?)|CHACHA20-POLY1305)"
)
# Numbers of OpenSSL's ssl.h.
_SET_SESSION_CACHE_MODE: Final = 44
_SESSION_CACHE_OFF: Final = 0
_SOURCE_LINE: Final = re.compile(r"^\[SSL\] | \(_ssl\.c:\d+\)$")


class TlsConfigError(Exception):
    """The TLS options cannot be used; the text says why. Raised at start-up only."""


def build_server_context(
    cert: str, key: str, *, client_auth_policy: str, root_ca_file: str, min_version: ssl.TLSVersion
) -> ssl.SSLContext:
    """Return the context for incoming connections, TCP and HTTPS.

    Args:
        cert: PEM file with the certificate and its chain.
        key: PEM file with its private key, not encrypted.
        client_auth_policy: "", "require" or "require-verify".
        root_ca_file: PEM file with the authorities of client certificates; "" for the system's.
        min_version: versions before 1.2 also need an OpenSSL whose configuration lowers the
            security level; nsqd never does.

    Raises:
        TlsConfigError: a file or value is bad, or this Python cannot do what the policy asks.
    """
    if client_auth_policy not in {"", "require", "require-verify"}:
        raise TlsConfigError(f"unknown client auth policy {client_auth_policy!r}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    # NSQ's connections live long, so resuming gains nothing; and a resumed session would let a
    # client in on a certificate that was good when the session began. See also
    # `_switch_session_cache_off`.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    _set_min_version(context, min_version)
    _load_key_pair(context, cert, key)
    if root_ca_file:
        _load_authorities(context, root_ca_file)
    elif client_auth_policy == "require-verify":
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    try:
        _switch_session_cache_off(context)
        if client_auth_policy == "require":
            _accept_any_certificate(context)
    except TlsConfigError as error:
        # A session lets in no one who would not be let in without it, if no certificate is asked
        # for; and TLS 1.3 has no sessions but those of tickets.
        if client_auth_policy == "require" or (
            client_auth_policy and min_version < ssl.TLSVersion.TLSv1_3
        ):
            raise TlsConfigError(f"client auth policy {client_auth_policy}: {error}") from error
    if client_auth_policy == "require":
        _prove_any_certificate_accepted(context, cert, key)
    return context


def build_client_context(root_ca_file: str, min_version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return the context for outgoing https requests, which verifies the server.

    Raises:
        TlsConfigError: a file or value is bad.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_min_version(context, min_version)
    if root_ca_file:
        _load_authorities(context, root_ca_file)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


class DoorContext(ssl.SSLContext):
    """The context of a listening socket: each new connection gets the `current` one.

    So certificates change without another listening socket, and no connection falls between two.
    """

    current: ssl.SSLContext

    def __new__(cls, current: ssl.SSLContext) -> Self:
        """Begin with a context, which may be replaced."""
        door = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        door.current = current
        return door

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection, as asyncio and uvloop do for each that they accept."""
        return self.current.wrap_bio(*args, **options)


class FailedHandshakes:
    """How many TLS handshakes failed, at all doors, with any context that is watched.

    asyncio tells of no failed handshake of a server. A client that hangs up in the middle, or takes
    too long, is not counted: there is no error of TLS.
    """

    def __init__(self) -> None:
        self.count = 0

    def watch(self, context: ssl.SSLContext) -> None:
        """Count the failures of this context, too."""
        counts = self

        class CountedObject(ssl.SSLObject):
            """One side of a connection."""

            def do_handshake(self) -> None:
                """Go on with the handshake.

                Raises:
                    SSLError: it failed, or needs more bytes.
                """
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError:
                    counts.count += 1
                    raise

        context.sslobject_class = CountedObject


def describe_tls_error(error: ssl.SSLError) -> str:
    """Return the failure in words, without the place in Python's source that str() adds."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    reason: str | None = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if reason else _SOURCE_LINE.sub("", str(error))


class TlsCodec:
    """The server's end of one TLS connection, between its ciphertext and its plaintext.

    After each call `take_outgoing` may have bytes for the peer, also after a raised error: the
    handshake, an alert, a key update.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "handshake_done", "has_pending",
                 "is_peer_closed", "peer_common_name")  # fmt: skip

    def __init__(self, context: ssl.SSLContext) -> None:
        """Wait for a ClientHello."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.handshake_done = False
        # Whether `feed` would return more without further ciphertext.
        self.has_pending = False
        # The peer said that it will send no more; it may still read.
        self.is_peer_closed = False
        # Of the client's certificate; "" before the handshake, and if none was asked for.
        self.peer_common_name = ""

    def feed(self, data: bytes) -> bytes:
        """Take ciphertext and return the plaintext that it completes; none during the handshake.

        Args:
            data: may hold thousands of tiny records: those beyond MAX_RECORDS are left pending.
                Empty to go on with them.

        Raises:
            ssl.SSLError: the peer broke the protocol or was refused; the codec is of no use any
                more. Bytes that are no TLS at all leave nothing to send, so an error in the clear
                may follow.
        """
        self._incoming.write(data)
        if not self.handshake_done and not self._shake_hands():
            return b""
        pieces = []
        try:
            while piece := self._object.read(_RECORD_BYTES):
                pieces.append(piece)
                if len(pieces) == MAX_RECORDS:
                    break
        except ssl.SSLWantReadError:
            pass
        else:
            self.is_peer_closed = not piece
        self.has_pending = len(pieces) == MAX_RECORDS
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def encode(self, plaintext: bytes) -> bytes:
        """Return the bytes to send: those still waiting, then the plaintext as records."""
        assert self.handshake_done, "application data before the end of the handshake"
        rest = memoryview(plaintext)
        while rest:
            rest = rest[self._object.write(rest) :]
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Return the bytes that wait to be sent; b"" for none."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """Return the bytes that tell the peer that no more will come; it need not answer."""
        if self.handshake_done:
            # Usually "want read", as the peer's own farewell has not come. After a failure none can
            # be written.
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()
        return self.take_outgoing()

    @property
    def version(self) -> str:
        """The protocol agreed on, such as `TLS1.3`."""
        name = (self._object.version() or "").replace("TLSv", "TLS")
        return "TLS1.0" if name == "TLS1" else name

    @property
    def cipher_suite(self) -> str:
        """The suite agreed on: its IANA name, or `Unknown <number>` for TLS 1.3's, as nsqd says."""
        cipher = self._object.cipher()
        if cipher is None:
            return ""
        name = cipher[0]
        match = _OPENSSL_SUITE.fullmatch(name)
        if match is not None:
            key_exchange = (match[1] or "RSA").replace("-", "_")
            if match["bits"] is None:
                return f"TLS_{key_exchange}_WITH_CHACHA20_POLY1305_SHA256"
            mode = "GCM" if match["mode"] else "CBC"
            return f"TLS_{key_exchange}_WITH_AES_{match['bits']}_{mode}_{match['hash']}"
        numbers = {known["name"]: known["id"] for known in self._object.context.get_ciphers()}
        return f"Unknown {numbers.get(name, 0) & 0xFFFF}"

    def _shake_hands(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.peer_common_name = _read_common_name(self._object)
        self.handshake_done = True
        return True


def _read_common_name(connection: ssl.SSLObject) -> str:
    try:
        # The dict is filled in under both policies, since both set CERT_REQUIRED.
        certificate = connection.getpeercert() or {}
    except ValueError as error:
        text = f"client certificate cannot be read: {error}"
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, text) from error
    subject = cast(_Subject, certificate.get("subject", ()))
    names = [
        value
        for relative_name in subject
        for attribute, value in relative_name
        if attribute == "commonName"
    ]
    # nsqd reports the last one.
    return names[-1] if names else ""


def _set_min_version(context: ssl.SSLContext, min_version: ssl.TLSVersion) -> None:
    with warnings.catch_warnings():
        # --tls-min-version=tls1.0 is a decision of the operator; Python would warn about it.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = min_version


def _load_key_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    _check_readable(cert)
    _check_readable(key)
    try:
        context.load_cert_chain(cert, key, password=_refuse_encrypted_key)
    except ssl.SSLError as error:
        text = describe_tls_error(error)
        raise TlsConfigError(f"certificate {cert} and key {key}: {text}") from error


def _refuse_encrypted_key() -> str:
    # Without this, OpenSSL asks for the password on the terminal.
    raise TlsConfigError("the private key is encrypted")


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsConfigError(f"authorities {path}: {describe_tls_error(error)}") from error


def _check_readable(path: str) -> None:
    # The ssl module's own errors do not name the file.
    try:
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise TlsConfigError(f"open {path}: {cause}") from error


_VerifyCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@functools.cache
def _accept() -> Callable[..., int]:
    # Cached because OpenSSL keeps a bare pointer to it: it must live as long as the process. Made
    # on first use, as some hardened systems forbid the executable memory it needs.
    return _VerifyCallback(lambda _store, _argument: 1)


def _switch_session_cache_off(context: ssl.SSLContext) -> None:
    """Make OpenSSL keep no sessions of TLS 1.2, which a client could resume by their id.

    Raises:
        TlsConfigError: this Python is built another way.
    """
    library, pointer = _find_openssl(context)
    control = library.SSL_CTX_ctrl
    control.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
    control.restype = ctypes.c_long
    control(pointer, _SET_SESSION_CACHE_MODE, _SESSION_CACHE_OFF, None)


def _accept_any_certificate(context: ssl.SSLContext) -> None:
    """Make OpenSSL take the client's certificate without verifying it.

    With CERT_REQUIRED, OpenSSL refuses clients that send no certificate, and asks a callback about
    those that do; the default callback verifies the chain.

    Raises:
        TlsConfigError: this Python is built another way.
    """
    library, pointer = _find_openssl(context)
    try:
        callback = _accept()
    except MemoryError as error:
        raise _not_possible(error) from error
    set_callback = library.SSL_CTX_set_cert_verify_callback
    set_callback.argtypes = [ctypes.c_void_p, _VerifyCallback, ctypes.c_void_p]
    set_callback.restype = None
    set_callback(pointer, callback, None)


def _find_openssl(context: ssl.SSLContext) -> tuple[ctypes.CDLL, int]:
    """Return OpenSSL and its SSL_CTX of a context, for settings that Python has no name for.

    The library is the one that Python's own module uses; the SSL_CTX is the first member of
    Python's context object. Both are checked before they are relied on.

    Raises:
        TlsConfigError: this Python is built another way.
    """
    if sys.implementation.name != "cpython":
        raise TlsConfigError(f"not possible on {sys.version}")
    try:
        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        version_of_library = library.OpenSSL_version_num
        get_options = library.SSL_CTX_get_options
    except (OSError, AttributeError) as error:
        raise _not_possible(error) from error
    version_of_library.restype = ctypes.c_ulong
    get_options.argtypes = [ctypes.c_void_p]
    get_options.restype = ctypes.c_uint64

    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value
    if (
        version_of_library() != ssl.OPENSSL_VERSION_NUMBER
        or pointer is None
        or pointer <= 0xFFFF
        or pointer % 8
        or get_options(pointer) != context.options & 0xFFFF_FFFF_FFFF_FFFF
    ):
        raise TlsConfigError("the ssl module of this Python is not laid out as expected")
    return library, pointer


def _not_possible(error: Exception) -> TlsConfigError:
    return TlsConfigError(f"not possible with this build of Python ({error})")


def _prove_any_certificate_accepted(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Try the policy with two clients: one has the server's own certificate, the other none.

    Raises:
        TlsConfigError: the first is refused or the second is not.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    refusal_without = _find_refusal(context, client)
    client.load_cert_chain(cert, key, password=_refuse_encrypted_key)
    refusal_with = _find_refusal(context, client)
    if refusal_without is None or refusal_with is not None:
        raise TlsConfigError(
            "client auth policy require does not work with this build of Python:"
            f" with a certificate {refusal_with}, without one {refusal_without}"
        )


def _find_refusal(context: ssl.SSLContext, client_context: ssl.SSLContext) -> ssl.SSLError | None:
    """Return why the server refuses such a client, None if it shakes hands with it."""
    server = TlsCodec(context)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    for _ in range(3):  # TLS 1.2 needs two turns, TLS 1.3 as many for the client's certificate.
        try:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            server.feed(to_server.read())
        except ssl.SSLError as error:
            return error
        if server.handshake_done:
            return None
        to_client.write(server.take_outgoing())
    return ssl.SSLError(ssl.SSL_ERROR_SSL, "the handshake does not end")
