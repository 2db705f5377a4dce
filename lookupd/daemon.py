"""The composition root of nsqlookupd: it listens, serves until it is told to stop, and closes.

`Daemon` owns the registry and the two doors to it. Its life has two phases: `start`, and
`close` when its `ending` is requested. Only `__main__` and tests import this module.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable

from lookupd.http_api import HttpApi
from lookupd.options import PROGRAM, Options
from lookupd.registry import Registry
from lookupd.tcp import COMMAND_TIMEOUT_S, PeerServer
from nsqd import PROTOCOL_VERSION
from nsqd.config.flags import ConfigError, OptionsError, version_text
from nsqd.config.program import take_over
from nsqd.config.token_file import TokenFile
from nsqd.http.bearer import BearerToken
from nsqd.http.debug import DebugRoutes
from nsqd.http.origin import BrowserGuard
from nsqd.http.server import BeforeHook, HttpServer, Request, Response
from nsqd.protocol.lookup import LookupdIdentity
from nsqd.runtime.listen import format_address, listen, port_of
from nsqd.runtime.loop_watch import logging_stalls
from nsqd.runtime.process import Ending

logger = logging.getLogger(__name__)


class Daemon:
    """One nsqlookupd."""

    def __init__(
        self,
        options: Options,
        read_options: Callable[[], Options] | None = None,
        *,
        command_timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> None:
        """Args:
            read_options: reads command line and config file again, for `reload`.

        Raises:
            OptionsError: the file of the token holds none.
        """
        self._options = options
        self._read_options = read_options
        self._token_file = None
        if options.auth_token_file:
            self._token_file = TokenFile(options.auth_token_file, flag="auth-token-file")
        # Activity and tombstones are differences of time, which a clock that steps would falsify.
        clock = time.monotonic
        self.registry = registry = Registry(
            inactive_producer_timeout_s=options.inactive_producer_timeout_s,
            tombstone_lifetime_s=options.tombstone_lifetime_s,
        )
        self._peer_server = PeerServer(
            registry,
            clock=clock,
            command_timeout_s=command_timeout_s,
            max_connections=options.max_connections,
            token_file=self._token_file,
        )
        api = HttpApi(registry, self._peer_server, clock=clock)
        self._metrics = api.metrics
        self._http_server = HttpServer(
            api.router,
            before=self._make_before_hook(),
            on_request=api.on_request,
            max_connections=options.max_connections or None,
        )
        self._listeners: list[socket.socket] = []
        self._closings = contextlib.ExitStack()
        self.ending = Ending()
        # The real ports, once started.
        self.tcp_port = 0
        self.http_port = 0

    @property
    def ports(self) -> str:
        """The ports in use, in words."""
        return f"TCP port {self.tcp_port}, HTTP {self.http_port}"

    async def start(self) -> None:
        """Listen on both addresses, then answer.

        Raises:
            ListenError: an address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.ending.on_loop_exception)
        options = self._options
        logger.info("%s", version_text(PROGRAM))
        # Peers queue up meanwhile, because the answer to IDENTIFY names both ports.
        tcp_listener = self._listen(options.tcp_address)
        http_listener = self._listen(options.http_address)
        self.tcp_port, self.http_port = port_of(tcp_listener), port_of(http_listener)
        identity = LookupdIdentity(
            broadcast_address=options.broadcast_address,
            hostname=socket.gethostname(),
            http_port=self.http_port,
            tcp_port=self.tcp_port,
            version=PROTOCOL_VERSION,
        )
        self._closings.enter_context(logging_stalls(loop, on_lag=self._metrics.observe_lag))
        await self._peer_server.serve(tcp_listener, identity)
        logger.info("TCP: listening on %s", format_address(tcp_listener.getsockname()))
        await self._http_server.start(http_listener)
        logger.info("HTTP: listening on %s", format_address(http_listener.getsockname()))

    def _make_before_hook(self) -> BeforeHook:
        """Make the check of HTTP requests: of browsers, and changes need the token, if any."""
        guard = BrowserGuard(self._options.http_address)
        if self._token_file is None:
            return guard.check
        token = BearerToken(self._token_file, guarded_paths=DebugRoutes.PATHS, realm=PROGRAM)

        def check(request: Request) -> Response | None:
            guard.check(request)
            return token.check(request)

        return check

    def reload(self) -> None:
        """Read the token and, from the config file, the log level again; both, or neither."""
        token_file = self._token_file
        try:
            options = self._options
            if options.config and self._read_options is not None:
                options = self._read_options()
            if token_file is not None:
                token_file.replace(token_file.read())
        except (ConfigError, OptionsError) as error:
            logger.error("RELOAD: failed, nothing has changed - %s", error)  # noqa: TRY400 - no traceback
            return
        take_over(self._options, options)
        self._options = options
        logger.info("RELOAD: done")

    def _listen(self, address: str) -> socket.socket:
        listener = listen(address)
        self._listeners.append(listener)
        return listener

    async def close(self) -> None:
        """Close both doors; HTTP replies under way are finished. It may follow a failed start."""
        await self._peer_server.close()
        await self._http_server.close()
        self._closings.close()
        # Those that were never served.
        for listener in self._listeners:
            listener.close()
