"""The composition root of nsqlookupd: it listens, serves until it is told to stop, and closes.

`Daemon` owns the registry and the two doors to it. Its life has three phases: `start`, `wait` and
`close`. Only `__main__` and tests import this module.
"""

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any

from lookupd.http_api import HttpApi
from lookupd.options import PROGRAM, Options
from lookupd.registry import Registry
from lookupd.tcp import COMMAND_TIMEOUT_S, PeerServer
from nsqd import PROTOCOL_VERSION
from nsqd.config.flags import version_text
from nsqd.http.server import HttpServer
from nsqd.protocol.lookup import LookupdIdentity
from nsqd.runtime.listen import format_address, listen, port_of
from nsqd.runtime.loop_watch import LoopWatch, StallLog

logger = logging.getLogger(__name__)


class Daemon:
    """One nsqlookupd."""

    def __init__(self, options: Options, *, command_timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._options = options
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
        )
        api = HttpApi(registry, self._peer_server, clock=clock)
        self._metrics = api.metrics
        self._http_server = HttpServer(
            api.router,
            on_request=api.on_request,
            max_connections=options.max_connections or None,
        )
        self._listeners: list[socket.socket] = []
        self._closings = contextlib.ExitStack()
        self._is_stopping = asyncio.Event()
        self._exit_code = 0
        # The real ports, once started.
        self.tcp_port = 0
        self.http_port = 0

    async def start(self) -> None:
        """Listen on both addresses, then answer.

        Raises:
            ListenError: an address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_exception)
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
        self._watch_loop(loop)
        await self._peer_server.serve(tcp_listener, identity)
        logger.info("TCP: listening on %s", format_address(tcp_listener.getsockname()))
        await self._http_server.start(http_listener)
        logger.info("HTTP: listening on %s", format_address(http_listener.getsockname()))

    def _watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        log = StallLog(loop)
        watch = LoopWatch(loop, on_lag=self._metrics.observe_lag, on_stall=log.note)
        self._closings.callback(log.close)
        self._closings.callback(watch.close)

    def _listen(self, address: str) -> socket.socket:
        listener = listen(address)
        self._listeners.append(listener)
        return listener

    async def wait(self) -> int:
        """Wait for `stop`; return the exit code."""
        await self._is_stopping.wait()
        logger.info("stopping exit_code=%d", self._exit_code)
        return self._exit_code

    def stop(self, exit_code: int = 0) -> None:
        """Ask the daemon to end. The first call decides on the exit code."""
        if not self._is_stopping.is_set():
            self._exit_code = exit_code
            self._is_stopping.set()

    async def close(self) -> None:
        """Close both doors; HTTP replies under way are finished. It may follow a failed start."""
        await self._peer_server.close()
        await self._http_server.close()
        self._closings.close()
        # Those that were never served.
        for listener in self._listeners:
            listener.close()

    def _on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that escaped a callback: OSError is logged, any other ends the daemon."""
        error = context.get("exception")
        if isinstance(error, OSError):
            # Out of descriptors at accept (the loop tries again), or a connection that broke.
            logger.error("%s: %s", context["message"], error)
            return
        logger.critical("%s", context["message"], exc_info=error)
        self.stop(1)
