"""Kinds of values that only nsqd's options have, and how each is spelled."""

import enum
import ssl

from nsqd.config import kinds
from nsqd.config.kinds import Kind


class TLSRequired(enum.IntEnum):
    """Who must use TLS; the integers are what GET /config/tls_required shows."""

    NO = 0
    TCP_ONLY = 1
    EVERYWHERE = 2


_TLS_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def _parse_tls_required(text: str) -> TLSRequired:
    spelled = text.lower()
    if spelled == "tcp-https":
        return TLSRequired.TCP_ONLY
    try:
        return TLSRequired.EVERYWHERE if kinds.parse_bool(spelled) else TLSRequired.NO
    except ValueError:
        raise ValueError("must be true, false or tcp-https") from None


def _show_tls_required(value: TLSRequired) -> str:
    match value:
        case TLSRequired.NO:
            return "false"
        case TLSRequired.TCP_ONLY:
            return "tcp-https"
        case TLSRequired.EVERYWHERE:
            return "true"


def _parse_tls_version(text: str) -> ssl.TLSVersion:
    """Empty stands for the default, as the example config of NSQ has it."""
    spelled = text.lower() or "tls1.2"
    if spelled not in _TLS_VERSIONS:
        raise ValueError(f'unknown TLS version "{spelled}" ({", ".join(_TLS_VERSIONS)})')
    return _TLS_VERSIONS[spelled]


def _show_tls_version(version: ssl.TLSVersion) -> str:
    return next(text for text, known in _TLS_VERSIONS.items() if known == version)


TLS_REQUIRED: Kind[TLSRequired] = kinds.special(
    "true|false|tcp-https", _parse_tls_required, _show_tls_required, to_json=int, is_boolean=True
)
TLS_VERSION: Kind[ssl.TLSVersion] = kinds.special(
    "|".join(_TLS_VERSIONS), _parse_tls_version, _show_tls_version, to_json=int
)
