"""Certificates made when a test needs them, with the standard library alone.

Private keys in a repository set off alarms, and tests should run without the openssl command. So
this writes P-256 keys and X.509 certificates itself, odd ones included. The arithmetic is textbook
and leaks its secrets through timing: for tests only.
"""

import base64
import hashlib
import secrets
import textwrap
from dataclasses import dataclass
from pathlib import Path

# The curve P-256 (SEC 2): y² = x³ - 3x + b over the field of this prime, and a point of this order.
_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_GENERATOR = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None

_OID_EC_PUBLIC_KEY = "1.2.840.10045.2.1"
_OID_P256 = "1.2.840.10045.3.1.7"
_OID_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_OID_COMMON_NAME = "2.5.4.3"
_OID_BASIC_CONSTRAINTS = "2.5.29.19"
_OID_SUBJECT_ALTERNATIVE_NAME = "2.5.29.17"
_OID_EXTENDED_KEY_USAGE = "2.5.29.37"
_OID_SERVER_AUTH = "1.3.6.1.5.5.7.3.1"
_OID_CLIENT_AUTH = "1.3.6.1.5.5.7.3.2"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate and its key, as PEM files and as what it takes to issue further ones."""

    cert_file: str
    key_file: str
    subject: bytes
    private_key: int


def make_authority(directory: Path, name: str = "test authority") -> Credentials:
    """Make a self-signed certificate that may sign others."""
    extension = _extension(_OID_BASIC_CONSTRAINTS, _sequence(b"\x01\x01\xff"), critical=True)
    return _write(directory, (name,), None, [extension])


def make_server(
    directory: Path, authority: Credentials, *, not_after: str = "20991231235959Z"
) -> Credentials:
    """Make the certificate of a server at localhost and 127.0.0.1."""
    names = _sequence(_tlv(0x82, b"localhost"), _tlv(0x87, bytes([127, 0, 0, 1])))
    extensions = [
        _extension(_OID_SUBJECT_ALTERNATIVE_NAME, names),
        _extension(_OID_EXTENDED_KEY_USAGE, _sequence(_oid(_OID_SERVER_AUTH))),
    ]
    return _write(directory, ("localhost",), authority, extensions, not_after)


def make_client(
    directory: Path,
    *common_names: str,
    authority: Credentials | None = None,
    not_after: str = "20991231235959Z",
) -> Credentials:
    """Make the certificate of a client.

    Args:
        common_names: as many as the subject shall have.
        authority: who signs it; without one it is self-signed.
    """
    extension = _extension(_OID_EXTENDED_KEY_USAGE, _sequence(_oid(_OID_CLIENT_AUTH)))
    return _write(directory, common_names, authority, [extension], not_after)


def _write(
    directory: Path,
    common_names: tuple[str, ...],
    authority: Credentials | None,
    extensions: list[bytes],
    not_after: str = "20991231235959Z",
) -> Credentials:
    private_key = secrets.randbelow(_ORDER - 1) + 1
    point = _multiply(private_key, _GENERATOR)
    assert point is not None
    public_key = b"\x04" + point[0].to_bytes(32) + point[1].to_bytes(32)
    subject = _sequence(*map(_relative_name, common_names))
    algorithm = _sequence(_oid(_OID_ECDSA_SHA256))
    to_be_signed = _sequence(
        _tlv(0xA0, _integer(2)),
        _integer(secrets.randbits(120) + 1),
        algorithm,
        authority.subject if authority else subject,
        _sequence(_tlv(0x17, b"200101000000Z"), _tlv(0x18, not_after.encode())),
        subject,
        _sequence(_sequence(_oid(_OID_EC_PUBLIC_KEY), _oid(_OID_P256)), _bits(public_key)),
        _tlv(0xA3, _sequence(*extensions)),
    )
    signature = _sign(authority.private_key if authority else private_key, to_be_signed)
    key = _sequence(
        _integer(1),
        _tlv(0x04, private_key.to_bytes(32)),
        _tlv(0xA0, _oid(_OID_P256)),
        _tlv(0xA1, _bits(public_key)),
    )
    directory.mkdir(parents=True, exist_ok=True)
    stem = secrets.token_hex(8)
    cert_file, key_file = directory / f"{stem}.pem", directory / f"{stem}.key"
    cert_file.write_text(_pem("CERTIFICATE", _sequence(to_be_signed, algorithm, _bits(signature))))
    key_file.write_text(_pem("EC PRIVATE KEY", key))
    return Credentials(str(cert_file), str(key_file), subject, private_key)


def _sign(private_key: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest())
    while True:
        nonce = secrets.randbelow(_ORDER - 1) + 1
        point = _multiply(nonce, _GENERATOR)
        assert point is not None
        r = point[0] % _ORDER
        s = pow(nonce, -1, _ORDER) * (digest + r * private_key) % _ORDER
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _multiply(factor: int, point: _Point) -> _Point:
    product: _Point = None
    while factor:
        if factor & 1:
            product = _add(product, point)
        point = _add(point, point)
        factor >>= 1
    return product


def _add(left: _Point, right: _Point) -> _Point:
    if left is None or right is None:
        return left or right
    (x1, y1), (x2, y2) = left, right
    if x1 == x2 and (y1 + y2) % _PRIME == 0:
        return None
    if left == right:
        slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, _PRIME)
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, _PRIME)
    x3 = (slope * slope - x1 - x2) % _PRIME
    return x3, (slope * (x1 - x3) - y1) % _PRIME


def _relative_name(common_name: str) -> bytes:
    return _tlv(0x31, _sequence(_oid(_OID_COMMON_NAME), _tlv(0x0C, common_name.encode())))


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(oid), b"\x01\x01\xff" if critical else b"", _tlv(0x04, value))


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _bits(value: bytes) -> bytes:
    return _tlv(0x03, b"\x00" + value)


def _integer(value: int) -> bytes:
    return _tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    encoded = bytearray([first * 40 + second])
    for number in rest:
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        encoded += bytes(reversed(septets))
    return _tlv(0x06, bytes(encoded))


def _tlv(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes([tag, size]) + value
    size_bytes = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(size_bytes)]) + size_bytes + value


def _pem(label: str, der: bytes) -> str:
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
