"""BearerToken: the check of the token that changes over HTTP need, in nsqd and nsqlookupd."""

from collections.abc import Iterable

from nsqd.config.token_file import TokenFile
from nsqd.http.server import JSON_CONTENT_TYPE, HttpError, Request, Response, Style

_HARMLESS_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))


class BearerToken:
    """Demand the token that a file holds before a change, and before a message is shown."""

    def __init__(
        self,
        file: TokenFile,
        *,
        guarded_paths: Iterable[str] = (),
        guarded_prefixes: Iterable[str] = (),
        realm: str = "nsqd",
    ) -> None:
        """Args:
        guarded_paths: paths where even a GET changes something, or shows messages.
        guarded_prefixes: the beginnings of more of them.
        realm: the program, for people who are asked for the token.
        """
        self._file = file
        self._guarded_paths = frozenset(guarded_paths)
        self._guarded_prefixes = tuple(guarded_prefixes)
        error = Response.error(HttpError(401, "UNAUTHORIZED"), Style.V1)
        self._refusal = Response(
            401,
            error.body,
            content_type=JSON_CONTENT_TYPE,
            headers={"WWW-Authenticate": f'Bearer realm="{realm}"'},
        )

    def check(self, request: Request) -> Response | None:
        """Return the refusal if the request needs the token and does not have it."""
        if request.raw_method in _HARMLESS_METHODS and not self._is_guarded(request.path):
            return None
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        is_known = self._file.matches(token.strip())
        return None if scheme.lower() == b"bearer" and is_known else self._refusal

    def _is_guarded(self, path: str) -> bool:
        return path in self._guarded_paths or path.startswith(self._guarded_prefixes)
