"""Who may use the HTTP API: TLS only, pages of other origins, a bearer token.

All of it is off by default, as in nsqd, which leaves it to a proxy. The TCP port is not concerned:
it has AUTH.
"""

import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nsqd.config.flags import OptionsError
from nsqd.http.server import JSON_CONTENT_TYPE, HttpError, Request, Response, Style

logger = logging.getLogger(__name__)

# How often the token's file is looked at, so that a new token needs no restart.
TOKEN_CHECK_S = 1.0
MAX_TOKEN_BYTES = 4096
PREFLIGHT_MAX_AGE_S = 600

_HARMLESS_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))


def refuse_plain_http(https_port: int) -> Callable[[Request], Response | None]:
    """Refuse plain HTTP; nsqadmin goes on to the HTTPS port that the refusal names."""
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port
    refusal = Response(403, body, content_type=JSON_CONTENT_TYPE)
    return lambda request: None if request.is_tls else refusal


class CorsPolicy:
    """Tell browsers which other sites' pages may read the replies."""

    def __init__(self, origins: Iterable[str]) -> None:
        """Args: origins: such as `https://admin.example`; `*` stands for all."""
        self._origins = frozenset(origins)

    def mark(self, request: Request) -> None:
        """Put the headers for the request's origin on its reply, also on an error."""
        origin = request.headers.get(b"origin", b"").decode("latin-1")
        if not origin:
            return
        if "*" in self._origins:
            request.add_reply_header("Access-Control-Allow-Origin", "*")
        else:
            request.add_reply_header("Vary", "Origin")
            if origin not in self._origins:
                return
            request.add_reply_header("Access-Control-Allow-Origin", origin)
        request.add_reply_header("Access-Control-Expose-Headers", "X-NSQ-Content-Type")
        is_preflight = b"access-control-request-method" in request.headers
        if is_preflight and request.raw_method == b"OPTIONS":
            request.add_reply_header("Access-Control-Allow-Methods", "GET, POST, PUT, OPTIONS")
            request.add_reply_header("Access-Control-Allow-Headers", "Authorization, Content-Type")
            request.add_reply_header("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S))


class BearerToken:
    """Demand the token that a file holds before a change, and before a message is shown."""

    def __init__(
        self,
        path: str,
        *,
        guarded_paths: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
            guarded_paths: paths where even a GET changes something, or shows messages.

        Raises:
            OptionsError: the file holds no token.
        """
        self._path = Path(path)
        self._guarded_paths = frozenset(guarded_paths)
        self._clock = clock
        self._checked_at = clock()
        self._identity = _identify_file(self._path)
        self._token = _read_token(self._path)
        error = Response.error(HttpError(401, "UNAUTHORIZED"), Style.V1)
        self._refusal = Response(
            401,
            error.body,
            content_type=JSON_CONTENT_TYPE,
            headers={"WWW-Authenticate": 'Bearer realm="nsqd"'},
        )

    def check(self, request: Request) -> Response | None:
        """Return the refusal if the request needs the token and does not have it."""
        if request.raw_method in _HARMLESS_METHODS and request.path not in self._guarded_paths:
            return None
        if self._clock() - self._checked_at >= TOKEN_CHECK_S:
            self._reload()
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        is_known = hmac.compare_digest(token.strip(), self._token)
        return None if scheme.lower() == b"bearer" and is_known else self._refusal

    def _reload(self) -> None:
        self._checked_at = self._clock()
        identity = _identify_file(self._path)
        if identity == self._identity:
            return
        self._identity = identity
        try:
            self._token = _read_token(self._path)
        except OptionsError as error:
            logger.warning("HTTP: keeping the old token: %s", error)
        else:
            logger.info("HTTP: token file changed, the new token holds")


def _identify_file(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_token(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise OptionsError(f"failed to read --http-auth-token-file - {error}") from error
    if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or len(token.split()) != 1:
        raise OptionsError(f"--http-auth-token-file {path} does not hold one token")
    return token
