"""The composition root of nsqadmin: it listens, collects until it is told to stop, and closes.

`Daemon` owns the collector and the door. Its life has two phases: `start`, and `close`
when its `ending` is requested. Only `__main__` and tests import this module.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from console.assets import Assets
from nsqadmin.access.audit import AuditTrail
from nsqadmin.access.changes import Changes
from nsqadmin.access.guard import Guard
from nsqadmin.access.notifications import Notifications
from nsqadmin.access.roles import HeaderUsers, Role
from nsqadmin.access.tokens import Tokens
from nsqadmin.api.actions import ActionRoutes
from nsqadmin.api.clients import ClientRoutes
from nsqadmin.api.compat import CompatRoutes
from nsqadmin.api.details import DetailRoutes
from nsqadmin.api.figures import FigureRoutes
from nsqadmin.api.limits import LimitRoutes
from nsqadmin.api.messages import MessageRoutes
from nsqadmin.api.pages import ConfigRoutes, GraphiteRoutes, PageRoutes
from nsqadmin.api.replies import ApiRouter
from nsqadmin.api.session import SessionRoutes
from nsqadmin.api.shared import SharedQuestions
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.commands import Commands
from nsqadmin.cluster.discovery import Discovery
from nsqadmin.cluster.upstream import Address, Upstream, UpstreamTokens
from nsqadmin.options import PROGRAM, Options, ReadOnly, parse_cidr
from nsqd.config.flags import ConfigError, OptionsError, version_text
from nsqd.config.program import take_over
from nsqd.config.token_file import TokenFile
from nsqd.http.origin import CrossSitePolicy, HostPolicy, is_loopback_name
from nsqd.http.server import HttpServer, Router, log_request
from nsqd.runtime.listen import format_address, listen, port_of, split_address
from nsqd.runtime.loop_watch import logging_stalls
from nsqd.runtime.process import Ending
from nsqd.runtime.tls import TlsConfigError, build_client_context, build_server_context

logger = logging.getLogger(__name__)

_HIGHEST_ROLES = {
    ReadOnly.NO: Role.ADMIN,
    ReadOnly.YES: Role.READER,
    ReadOnly.VIEW: Role.VIEWER,
}


class Daemon:
    """One nsqadmin."""

    def __init__(self, options: Options, read_options: Callable[[], Options] | None = None) -> None:
        """Args:
            read_options: reads command line and config file again, for `reload`.

        Raises:
            OptionsError: a file of tokens, a certificate or the audit log can't be used.
        """
        self._options = options
        self._read_options = read_options
        self._ssl_context = _server_context(options)
        self._upstream = Upstream(
            connect_timeout_s=options.http_client_connect_timeout_s,
            request_timeout_s=options.http_client_request_timeout_s,
            tokens=_upstream_tokens(options),
            ssl_context=_client_context(options),
        )
        discovery = Discovery(
            self._upstream,
            lookupds=[Address.parse(text) for text in options.lookupd_http_addresses],
            nsqds=[Address.parse(text) for text in options.nsqd_http_addresses],
        )
        self.collector = Collector(
            self._upstream,
            discovery,
            poll_interval_s=options.poll_interval_s,
            history_max_bytes=options.history_max_bytes,
        )
        self._trail = AuditTrail(options.audit_log)
        self._notifications = Notifications(options.notification_http_endpoint)
        guard = _make_guard(options)
        changes = Changes(guard, self._trail, self._notifications, self.collector)
        guard.on_refused = changes.note_cross_site
        commands = Commands(self._upstream, discovery)
        questions = SharedQuestions()
        self._actions = ActionRoutes(self.collector, discovery, commands, changes)
        self._graphite = GraphiteRoutes(options)
        router = ApiRouter(Router(), guard, options.base)
        collector, upstream = self.collector, self._upstream
        for routes in (
            FigureRoutes(collector),
            DetailRoutes(collector, upstream, questions),
            ClientRoutes(collector, upstream),
            LimitRoutes(collector, upstream, questions),
            MessageRoutes(
                *(collector, upstream, commands, changes), peek_max_body=options.peek_max_body
            ),
            self._actions,
            SessionRoutes(options, guard, collector, changes),
            CompatRoutes(upstream, discovery, commands, collector, changes),
            ConfigRoutes(options, discovery, changes),
            self._graphite,
            PageRoutes(options, _read_dev_assets(options)),
        ):
            routes.add_to(router)
        self._http_server = HttpServer(
            router.router,
            before=guard.check_head,
            on_request=log_request,
            max_connections=options.max_connections or None,
        )
        self._listener: socket.socket | None = None
        self._closings = contextlib.ExitStack()
        self.ending = Ending()
        self.http_port = 0  # the real one, once started

    @property
    def ports(self) -> str:
        """The port in use, in words."""
        return f"HTTP port {self.http_port}"

    async def start(self) -> None:
        """Listen and answer; the first round is under way then.

        Raises:
            ListenError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.ending.on_loop_exception)
        logger.info("%s", version_text(PROGRAM))
        self._warn()
        self._listener = listen(self._options.http_address)
        self.http_port = port_of(self._listener)
        self._closings.enter_context(logging_stalls(loop))
        self._notifications.start()
        await self._http_server.start(self._listener, ssl=self._ssl_context)
        logger.info("HTTP: listening on %s", format_address(self._listener.getsockname()))
        self.collector.start()

    def _warn(self) -> None:
        """Log the doors that are open and that the operator may think are closed."""
        options = self._options
        if options.admin_users and not options.acl_trusted_cidrs and not _is_local(options):
            logger.warning(
                "--admin-user: everybody who reaches this port can claim to be one in the header"
                " %s; set --acl-trusted-cidr",
                options.acl_http_header,
            )
        if options.nsqd_http_auth_token_file and not options.nsqd_token_hosts:
            logger.warning(
                "--nsqd-http-auth-token-file: every node that nsqlookupd names is sent the token,"
                " over plain http; set --nsqd-token-hosts"
            )
        if options.proxy_graphite and not options.graphite_url:
            logger.warning("--proxy-graphite has no effect without --graphite-url")

    def reload(self) -> None:
        """Read the log level from the config file again; tokens are looked at every second."""
        options = self._options
        if options.config and self._read_options is not None:
            try:
                options = self._read_options()
            except (ConfigError, OptionsError) as error:
                logger.error("RELOAD: failed, nothing has changed - %s", error)  # noqa: TRY400 - no traceback
                return
        take_over(self._options, options)
        self._options = options
        logger.info("RELOAD: done")

    async def close(self) -> None:
        """Stop collecting, finish the replies under way, close the door."""
        await self._http_server.close()
        await self._actions.close()
        await self.collector.close()
        await self._notifications.close()
        self._upstream.close()
        self._graphite.close()
        self._trail.close()
        self._closings.close()
        if self._listener is not None:
            self._listener.close()


def _make_guard(options: Options) -> Guard:
    return Guard(
        hosts=HostPolicy(options.http_allowed_hosts, is_loopback=_is_local(options)),
        cross_site=CrossSitePolicy(options.http_cors_origins),
        cors_origins=options.http_cors_origins,
        users=HeaderUsers(
            options.acl_http_header,
            admins=options.admin_users,
            roles=options.acl_roles,
            trusted=[parse_cidr(text) for text in options.acl_trusted_cidrs],
        ),
        tokens=Tokens(options.http_auth_token_file) if options.http_auth_token_file else None,
        highest=_HIGHEST_ROLES[options.read_only],
        base=options.base,
    )


def _is_local(options: Options) -> bool:
    """Whether only this machine reaches the port."""
    pair = split_address(options.http_address)
    return pair is not None and bool(pair[0]) and is_loopback_name(pair[0])


def _upstream_tokens(options: Options) -> UpstreamTokens:
    def read(path: str, flag: str) -> TokenFile | None:
        return TokenFile(path, flag=flag) if path else None

    return UpstreamTokens(
        nsqd=read(options.nsqd_http_auth_token_file, "nsqd-http-auth-token-file"),
        nsqd_hosts=options.nsqd_token_hosts,
        lookupd=read(options.lookupd_auth_token_file, "lookupd-auth-token-file"),
    )


def _server_context(options: Options) -> ssl.SSLContext | None:
    if not options.tls_cert:
        return None
    try:
        return build_server_context(
            options.tls_cert,
            options.tls_key,
            client_auth_policy="",
            root_ca_file="",
            min_version=ssl.TLSVersion.TLSv1_2,
        )
    except TlsConfigError as error:
        raise OptionsError(f"failed to load --tls-cert - {error}") from error


def _client_context(options: Options) -> ssl.SSLContext | None:
    """Return the context for https upstream; None if the system's authorities are all it needs."""
    has_flags = (
        options.http_client_tls_insecure_skip_verify
        or options.http_client_tls_root_ca_file
        or options.http_client_tls_cert
    )
    if not has_flags:
        return None
    try:
        context = build_client_context(options.http_client_tls_root_ca_file, ssl.TLSVersion.TLSv1_2)
        if options.http_client_tls_insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if options.http_client_tls_cert:
            context.load_cert_chain(options.http_client_tls_cert, options.http_client_tls_key)
    except (TlsConfigError, OSError) as error:
        raise OptionsError(f"failed to load --http-client-tls-cert - {error}") from error
    return context


def _read_dev_assets(options: Options) -> Assets | None:
    """Return the files of --dev-static-dir, read once; None without that flag."""
    if not options.dev_static_dir:
        return None
    root = Path(options.dev_static_dir)
    if not root.is_dir():
        raise OptionsError(f"--dev-static-dir {root} is no directory")
    suffixes = (".js", ".css", ".svg")
    paths = [path for path in sorted(root.rglob("*")) if path.suffix in suffixes]
    return Assets({str(path.relative_to(root)): path.read_bytes() for path in paths})
