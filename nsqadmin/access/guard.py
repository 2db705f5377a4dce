"""Guard: the checks that every request passes first, and the caller of it.

The checks of the head (host, other sites) run before the body is read. `identify` names the caller;
routes ask for a right.
"""

from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final

from nsqadmin.access.roles import Caller, HeaderUsers, Right, Role
from nsqadmin.access.tokens import SESSION_S, Attempts, Sessions, Tokens
from nsqd.http.origin import CrossSitePolicy, HostPolicy
from nsqd.http.server import HttpError, Request, Response

COOKIE: Final = "nsqadmin_session"
_MAX_COOKIE_BYTES: Final = 8192

# On every reply: the page runs nothing but its own files, in no frame of another site.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HEADER_LINES: Final = "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items()).encode()

OnRefused = Callable[[Request, str], None]


class Guard:
    """The checks of a door, and the roles of its callers."""

    def __init__(
        self,
        *,
        hosts: HostPolicy,
        cross_site: CrossSitePolicy,
        cors_origins: tuple[str, ...],
        users: HeaderUsers,
        tokens: Tokens | None,
        highest: Role,
        base: str,
    ) -> None:
        """Args:
        tokens: None without sign-in.
        highest: the highest role that any caller gets, for --read-only.
        base: the base path, to which the cookie is bound.
        """
        self._hosts = hosts
        self._cross_site = cross_site
        self._cors_origins = frozenset(cors_origins)
        self._users = users
        self._tokens = tokens
        self._sessions = None if tokens is None else Sessions(tokens)
        self._attempts = Attempts()
        self._highest = highest
        self._base = base
        self._files = f"{base}/static/"
        # Called with changes that were refused as another site's.
        self.on_refused: OnRefused = lambda request, code: None

    @property
    def kind(self) -> str:
        """How callers are told apart: none, header or token."""
        if self._tokens is not None:
            return "token"
        return "header" if self._users else "none"

    def check_head(self, request: Request) -> Response | None:
        """Refuse requests that must not even be read, and put the headers on every reply.

        Raises:
            HttpError: 421, 404 or 403.
        """
        request.reply_lines += HEADER_LINES
        if self._hosts.is_refused(request):
            raise HttpError(421, "WRONG_HOST")
        if request.path.startswith(self._files) and not _is_plain(request.path):
            raise HttpError(404, "NOT_FOUND")  # and not where the path might have meant to lead
        if self._cors_origins:
            self._mark_cors(request)
        if self._cross_site.is_refused(request):
            self.on_refused(request, "CROSS_SITE")
            raise HttpError(403, "CROSS_SITE")
        return None

    def identify(self, request: Request) -> Caller:
        """Return the caller.

        Raises:
            HttpError: 401, 429: a token is needed, and there is none or a wrong one.
        """
        caller = self._find_caller(request)
        if caller.role > self._highest:
            return Caller(caller.user, self._highest)
        return caller

    def demand(self, request: Request, right: Right) -> Caller:
        """Return the caller, who has a right.

        Raises:
            HttpError: 401, 403, 429.
        """
        caller = self.identify(request)
        if not caller.may(right):
            raise HttpError(403, "FORBIDDEN")
        return caller

    def sign_in(self, request: Request, token: str) -> tuple[Caller, str]:
        """Begin a session; return the caller and the line of its cookie.

        Raises:
            HttpError: 401 wrong token, 404 there is no sign-in here, 429 too many wrong ones.
        """
        if self._tokens is None or self._sessions is None:
            raise HttpError(404, "NO_TOKENS")
        raw = token.encode("utf-8", "replace")
        caller = self._check_token(request, raw)
        cookie = self._sessions.open(raw, caller)
        return caller, self._cookie_line(request, cookie, round(SESSION_S))

    def sign_out(self, request: Request) -> str:
        """End the session of a request, if it has one; return the line that removes its cookie."""
        cookie = _find_cookie(request.headers)
        if self._sessions is not None and cookie:
            self._sessions.close(cookie)
        return self._cookie_line(request, "", 0)

    def _find_caller(self, request: Request) -> Caller:
        if self._tokens is None:
            if not self._users:
                return Caller("", Role.ADMIN)
            return self._users.find(request.headers, request.remote)
        cookie = _find_cookie(request.headers)
        if cookie:
            assert self._sessions is not None
            caller = self._sessions.find(cookie)
            if caller is not None:
                return caller
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            raise HttpError(401, "UNAUTHORIZED")
        return self._check_token(request, token.strip())

    def _check_token(self, request: Request, token: bytes) -> Caller:
        assert self._tokens is not None
        host = request.remote.rpartition(":")[0]
        if self._attempts.is_blocked(host):
            raise HttpError(429, "TOO_MANY_ATTEMPTS")
        caller = self._tokens.find(token)
        if caller is None:
            self._attempts.note_wrong(host)
            raise HttpError(401, "UNAUTHORIZED")
        return caller

    def _cookie_line(self, request: Request, value: str, max_age_s: int) -> str:
        secure = "; Secure" if is_https(request) else ""
        return (
            f"{COOKIE}={value}; HttpOnly; SameSite=Strict; Path={self._base or '/'}"
            f"; Max-Age={max_age_s}{secure}"
        )

    def _mark_cors(self, request: Request) -> None:
        origin = request.headers.get(b"origin", b"").decode("latin-1")
        request.add_reply_header("Vary", "Origin")
        if not origin or origin not in self._cors_origins:
            return
        request.add_reply_header("Access-Control-Allow-Origin", origin)
        request.add_reply_header("Access-Control-Allow-Credentials", "true")
        is_preflight = b"access-control-request-method" in request.headers
        if is_preflight and request.raw_method == b"OPTIONS":
            methods = "GET, POST, PUT, DELETE, OPTIONS"
            request.add_reply_header("Access-Control-Allow-Methods", methods)
            request.add_reply_header("Access-Control-Allow-Headers", "Authorization, Content-Type")


def _is_plain(path: str) -> bool:
    """Whether a path has neither empty segments nor those that lead elsewhere."""
    return not any(segment in ("", ".", "..") for segment in path.split("/")[1:])


def is_https(request: Request) -> bool:
    """Whether the browser speaks https, to us or to the proxy before us."""
    return (
        request.is_tls
        or request.headers.get(b"x-forwarded-proto") == b"https"
        or request.headers.get(b"x-scheme") == b"https"
    )


def _find_cookie(headers: Mapping[bytes, bytes]) -> str:
    raw = headers.get(b"cookie", b"")
    if not raw or len(raw) > _MAX_COOKIE_BYTES:
        return ""
    try:
        morsel = SimpleCookie(raw.decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value
