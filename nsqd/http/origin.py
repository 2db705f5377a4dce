"""Whom a browser speaks for: refuse changes that pages of other sites ask for, and foreign hosts.

A page of any site can make its visitor's browser send requests to a daemon on loopback or behind a
firewall. Browsers say so, in `Sec-Fetch-Site` or `Origin`; other clients send neither and are not
concerned. A name of another site that leads to loopback (DNS rebinding) shows in `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from nsqd.http.routes import HttpError, Request

CROSS_SITE: Final = HttpError(403, "CROSS_SITE")
WRONG_HOST: Final = HttpError(421, "WRONG_HOST")

_HARMLESS_METHODS: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))
# Typed into the address bar, or from a page of ours.
_OWN_SITES: Final = frozenset((b"same-origin", b"none"))


class CrossSitePolicy:
    """Refuse changes that a page of another origin asks for."""

    def __init__(self, origins: Iterable[str] = (), *, changes_by_get: Iterable[str] = ()) -> None:
        """Args:
        origins: of other sites whose pages may change something; `*` stands for all.
        changes_by_get: the paths at which even a GET changes something.
        """
        self._origins = frozenset(origin.encode() for origin in origins)
        self._changes_by_get = frozenset(changes_by_get)

    def is_named(self, request: Request) -> bool:
        """Whether a request comes from a page of one of the named origins."""
        origin = request.headers.get(b"origin")
        return origin is not None and (origin in self._origins or b"*" in self._origins)

    def is_refused(self, request: Request) -> bool:
        """Whether a request is a change that comes from a page of another site."""
        if request.raw_method in _HARMLESS_METHODS and request.path not in self._changes_by_get:
            return False
        headers = request.headers
        if self.is_named(request):
            return False
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site not in _OWN_SITES
        if origin is None:
            return False
        _, separator, authority = origin.partition(b"://")
        return not separator or authority.lower() != headers.get(b"host", b"").lower()


class HostPolicy:
    """Refuse requests whose `Host` is not a name of ours; reads too."""

    def __init__(self, names: Iterable[str], *, is_loopback: bool) -> None:
        """Args:
        names: the host names that browsers may use; `*` stands for all.
        is_loopback: whether the daemon listens on loopback only. Then loopback's names are
            good too, and others are refused even if no names are given.
        """
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._is_loopback = is_loopback

    def is_refused(self, request: Request) -> bool:
        """Whether the request names a host that is not ours."""
        if "*" in self._names or not (self._names or self._is_loopback):
            return False
        # HTTP/1.0 knows no Host; browsers have sent it for 25 years.
        host = request.headers.get(b"host")
        if host is None:
            return False
        name = find_host_name(host.decode("latin-1"))
        if name in self._names:
            return False
        return not (self._is_loopback and is_loopback_name(name))


class BrowserGuard:
    """Both policies, for daemons whose clients are mostly no browsers.

    A tool may reach a daemon by any name, through a tunnel or a proxy, and never sends a header
    that only browsers send. So `Host` is looked at only in the requests of browsers: they all call
    themselves Mozilla/5.0, and a page of another site can't change that.
    """

    def __init__(
        self,
        address: str,
        *,
        allowed_hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        changes_by_get: Iterable[str] = (),
    ) -> None:
        """Args: address: where the daemon listens; the others are those of the policies."""
        is_loopback = is_loopback_name(find_host_name(address)) and not address.startswith(":")
        self._hosts = HostPolicy(allowed_hosts, is_loopback=is_loopback)
        self._cross_site = CrossSitePolicy(origins, changes_by_get=changes_by_get)

    def check(self, request: Request) -> None:
        """Let a request pass.

        Raises:
            HttpError: 403 CROSS_SITE or 421 WRONG_HOST.
        """
        headers = request.headers
        if b"sec-fetch-site" in headers or b"origin" in headers:
            if self._cross_site.is_named(request):
                return
            if self._cross_site.is_refused(request):
                raise CROSS_SITE
        elif not headers.get(b"user-agent", b"").startswith(b"Mozilla/"):
            return
        if self._hosts.is_refused(request):
            raise WRONG_HOST


def find_host_name(host: str) -> str:
    """Return the name or address in a `Host` header, without port and brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].rstrip(".") if ":" in host else host.rstrip(".")


def is_loopback_name(name: str) -> bool:
    """Whether a name or address can only be this machine."""
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
