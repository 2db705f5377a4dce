"""Who may use the HTTP API: TLS only, pages of other origins; `nsqd.http.bearer` has the token.

All of it is off by default, as in nsqd, which leaves it to a proxy. The TCP port is not concerned:
it has AUTH.
"""

from collections.abc import Callable, Iterable

from nsqd.http.server import JSON_CONTENT_TYPE, Request, Response

PREFLIGHT_MAX_AGE_S = 600


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
