"""`me`, sign-in and sign-out, and the audit trail of /api/v2."""

import time
from typing import Final

from nsqadmin.access.changes import Changes
from nsqadmin.access.guard import Guard
from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.replies import ApiRouter, compress, json_reply, read_object
from nsqadmin.cluster.collector import Collector
from nsqadmin.options import SECRET_KEYS, Options, ReadOnly
from nsqd import PROTOCOL_VERSION, __version__
from nsqd.config.flags import declared_flags
from nsqd.http.arguments import parse_count
from nsqd.http.origin import is_loopback_name
from nsqd.http.server import HttpError, Request, Response
from nsqd.runtime.listen import split_address

DEFAULT_COUNT: Final = 50
MAX_COUNT: Final = 200
_MAX_ID: Final = 10**12


class SessionRoutes:
    """Sign-in, the audit trail and the options of nsqadmin."""

    def __init__(
        self, options: Options, guard: Guard, collector: Collector, changes: Changes
    ) -> None:
        self._options = options
        self._guard = guard
        self._collector = collector
        self._changes = changes

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        router.add("GET", "/api/v2/me", self._me, Right.VIEW)
        router.add("GET", "/api/v2/audit", self._audit, Right.VIEW)
        # These two need no right: they give one, or take it back.
        plain = router.router
        plain.add("POST", f"{router.base}/api/v2/session", self._sign_in)
        plain.add("DELETE", f"{router.base}/api/v2/session", self._sign_out)

    async def _me(self, _request: Request, caller: Caller) -> Response:
        return json_reply(self._show(caller))

    async def _sign_in(self, request: Request) -> Response:
        token = read_object(request).get("token")
        if not isinstance(token, str) or not token:
            raise HttpError(400, "INVALID_BODY: token must be a text")
        caller, cookie = self._guard.sign_in(request, token)
        reply = json_reply(self._show(caller), headers={"Set-Cookie": cookie})
        return await compress(request, reply)

    def _sign_out(self, request: Request) -> Response:
        cookie = self._guard.sign_out(request)
        return json_reply({"message": ""}, headers={"Set-Cookie": cookie})

    async def _audit(self, request: Request, _caller: Caller) -> Response:
        count = DEFAULT_COUNT
        if (text := request.find("count")) is not None:
            parsed = parse_count(text, MAX_COUNT)
            if parsed is None:
                raise HttpError(400, "INVALID_ARG_COUNT")
            count = parsed
        before = None
        if text := request.find("before"):
            before = parse_count(text, _MAX_ID)
            if before is None:
                raise HttpError(400, "INVALID_ARG_BEFORE")
        entries, has_more = self._changes.trail.page(before, count)
        return json_reply(
            {
                "time_ms": time.time_ns() // 1_000_000,
                "entries": [entry.as_json() for entry in entries],
                "more": has_more,
            }
        )

    def _show(self, caller: Caller) -> dict[str, object]:
        options = self._options
        discovery = self._collector.discovery
        return {
            "user": caller.user,
            "role": caller.role.label,
            "rights": caller.role.rights,
            "auth": self._guard.kind,
            "read_only": options.read_only is not ReadOnly.NO,
            "mode": "cluster",
            "version": PROTOCOL_VERSION,
            "build": __version__,
            "base_path": f"{options.base}/",
            "poll_ms": round(options.poll_interval_s * 1000),
            "seq": self._collector.view.seq,
            "time_ms": time.time_ns() // 1_000_000,
            "discovery": "nsqlookupd" if discovery.has_lookupds else "nsqd",
            "features": {
                "history": bool(options.history_max_bytes),
                "audit": True,
                "actions": True,
                "graphite": bool(options.graphite_url),
            },
            "notes": self._find_notes(),
            "flags": show_flags(options),
        }

    def _find_notes(self) -> list[str]:
        """Return the warnings about doors that are open."""
        options = self._options
        notes = []
        if self._guard.kind == "none":
            notes.append(
                "Everybody who reaches this nsqadmin may do everything: set --admin-user behind a"
                " proxy that signs users in, or --http-auth-token-file."
            )
        elif self._collector.discovery.has_lookupds:
            notes.append(
                "Roles hold here only: see that the HTTP ports of nsqd and nsqlookupd are private,"
                " or protected by tokens of their own."
            )
        pair = split_address(options.http_address)
        is_local = pair is not None and is_loopback_name(pair[0]) and bool(pair[0])
        if not options.tls_cert and not is_local:
            notes.append("Served over plain http, unless a proxy in front adds TLS.")
        return notes


def show_flags(options: Options) -> dict[str, object]:
    """Return the options by their keys, as flags spell them, without secrets."""
    shown: dict[str, object] = {}
    for name, declared in declared_flags(options).items():
        if declared.toml_key is None:
            continue
        value = declared.kind.show(getattr(options, name))
        shown[declared.toml_key] = "***" if value and declared.toml_key in SECRET_KEYS else value
    return shown
