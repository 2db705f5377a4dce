"""Daemon: puts nsqd together, starts it, and stops it in the order that loses nothing.

The composition root: only `__main__` and the tests import it. Here options become the values that
each part needs, and here the few tasks and threads have their owner.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from nsqd.analytics.service import Analytics
from nsqd.api.admin import await_receipt
from nsqd.api.router import make_before_hook, make_router
from nsqd.broker import metadata
from nsqd.broker.broker import Broker
from nsqd.broker.durations import Histogram
from nsqd.broker.health import FULL_ERRNOS
from nsqd.broker.queue.ids import IdFloor, MessageIdFactory
from nsqd.config import options as option_checks
from nsqd.config.flags import OptionsError, version_text
from nsqd.config.options import PROGRAM, Options
from nsqd.config.token_file import TokenFile
from nsqd.drain import Drain
from nsqd.http.client import HttpClient
from nsqd.http.server import BeforeHook, HttpServer, Router, log_request
from nsqd.lookup.registration import Registration
from nsqd.node import Node
from nsqd.reload import Parts, ReadOptions, Reloader
from nsqd.runtime import tls
from nsqd.runtime.data_path import Listing, ensure_node_id, list_data_path, lock_directory
from nsqd.runtime.descriptors import Descriptors
from nsqd.runtime.disk_watch import DiskWatch
from nsqd.runtime.door_counts import DoorCounts
from nsqd.runtime.event_loop import (
    GarbageSweeper,
    LoopScheduler,
    SpinPoll,
    end_task,
    run_in_threads,
    start_task,
)
from nsqd.runtime.listen import (
    ListenError,
    format_address,
    listen,
    port_of,
    remove_unix_socket,
    serve,
)
from nsqd.runtime.loop_watch import LAG_BOUNDS_S, LoopWatch, logging_stalls
from nsqd.runtime.memory import MemoryAhead, keep_freed_memory
from nsqd.runtime.metadata_store import MetadataStore
from nsqd.runtime.process import Ending, StartError, run_daemon
from nsqd.runtime.turns import turns_of
from nsqd.settings import (
    broker_settings,
    build_client_context,
    build_server_context,
    find_token_file,
    http_client_limits,
    lookup_settings,
    tcp_settings,
)
from nsqd.stats.statsd import make_statsd
from nsqd.tcp.auth import AuthServers
from nsqd.tcp.auth_patterns import Re2MissingError, require_re2
from nsqd.tcp.connection import TcpSettings, V2Connection

logger = logging.getLogger(__name__)

# At a stop, publishers whose messages wait for the disk have so long to be answered.
LAST_REPLIES_S = 10.0
# At the end, dead letters have this long to leave the queues that they come from.
LAST_DEAD_LETTERS_S = 10.0


class Daemon:
    """One nsqd: `start`, then `close` when its `ending` is requested.

    Each step of `start` that takes hold of something leaves the undoing of it in `_undo`; `close`
    undoes them, the last one first. So a start that failed half-way is closed in the same way.
    """

    def __init__(
        self,
        options: Options,
        read_options: ReadOptions | None = None,
        *,
        sweeper: GarbageSweeper | None = None,
        memory: MemoryAhead | None = None,
    ) -> None:
        """Args:
        read_options: reads command line and config file again, for `reload`.
        sweeper: collects garbage in this process from now on; None leaves that to Python.
        memory: clears memory ahead of its use; None leaves that to the kernel.
        """
        self._options = options
        self._reloader = Reloader(options, read_options)
        self._data_path = Path(options.data_path or ".")
        self._undo = contextlib.AsyncExitStack()
        self._server_context: tls.DoorContext | None = None  # of both doors
        self._client_context: ssl.SSLContext | None = None
        self._listeners: dict[str, socket.socket] = {}
        self._connections: set[V2Connection] = set()
        self._http_client: HttpClient | None = None
        self._auth_servers: AuthServers | None = None
        self._loop_lags = Histogram(LAG_BOUNDS_S)
        self._doors = {"tcp": DoorCounts(), "http": DoorCounts()}
        self._failed_handshakes = tls.FailedHandshakes()
        self._sweeper = sweeper
        self._memory = memory
        self.ending = Ending()
        # Made by `start`.
        self._tcp: TcpSettings
        self._descriptors: Descriptors
        self._analytics: Analytics | None = None
        self.broker: Broker
        self.metadata: MetadataStore
        self.registration: Registration

    @property
    def tcp_port(self) -> int:
        """The port in use, for tests that ask for port 0."""
        return port_of(self._listeners.get("TCP"))

    @property
    def http_port(self) -> int:
        """The port of HTTP in use."""
        return port_of(self._listeners.get("HTTP"))

    @property
    def https_port(self) -> int:
        """The HTTPS port in use, 0 if there is none."""
        return port_of(self._listeners.get("HTTPS"))

    @property
    def ports(self) -> str:
        """The ports in use, in words."""
        return f"TCP port {self.tcp_port}, HTTP {self.http_port}"

    async def start(self) -> None:
        """Lock the data path, listen, load the queues, and serve.

        Raises:
            StartError: with the reason.
        """
        if self._sweeper is not None:
            self._undo.callback(self._sweeper.stop)
            self._sweeper.hold()
        try:
            self._undo.callback(os.close, lock_directory(self._data_path))
            self._check_options()
            self._listen()
            options = self._options
            http_token = find_token_file(options.http_auth_token_file, "http-auth-token-file")
            lookupd_token = find_token_file(
                options.lookupd_auth_token_file, "lookupd-auth-token-file"
            )
            before = make_before_hook(options, self.https_port, http_token)
        except (OptionsError, ListenError) as error:
            raise StartError(f"failed to instantiate {PROGRAM} - {error}") from error
        logger.info("%s", version_text(PROGRAM))
        logger.info("ID: %d", self._options.node_id)
        try:
            listing = list_data_path(self._data_path)
            self._make_broker(listing.newest_change_ns)
        except OSError as error:
            raise StartError(f"failed to look at data-path - {error}") from error
        self._load_queues(listing)
        registration_task = self._start_registration(lookupd_token)
        self._undo.push_async_callback(end_task, registration_task)  # if it can't be served
        node = await self._serve(before)
        parts = Parts(
            node=node,
            http_client=self._ensure_http_client(),
            tokens=tuple(filter(None, (http_token, lookupd_token))),
            renew_tls=self._renew_tls if self._server_context is not None else None,
        )
        reload_task = start_task(self._reloader.run(parts), "reload")
        self._undo.push_async_callback(end_task, reload_task)
        # Left last, so undone first: no consumer is sent here any more.
        self._undo.push_async_callback(end_task, registration_task)
        if self._sweeper is not None:
            self._sweeper.start()

    def reload(self) -> None:
        """Have the files read again, soon."""
        self._reloader.request()

    async def close(self) -> None:
        """Stop accepting, disconnect all clients, put every message on disk, release the lock."""
        await self._undo.aclose()
        if self.ending.is_requested:
            logger.info("NSQ: bye")

    def _check_options(self) -> None:
        """Make nsqd's start-up checks in nsqd's order."""
        options = self._options
        option_checks.check_values(options)
        if options.tls_cert or options.tls_key:
            self._server_context = tls.DoorContext(build_server_context(options))
            self._failed_handshakes.watch(self._server_context.current)
        option_checks.check_tls(options)
        self._client_context = build_client_context(options)
        option_checks.check_services(options)
        if options.auth_http_addresses:
            try:
                require_re2()
            except Re2MissingError as error:
                raise OptionsError(f"--auth-http-address cannot be used: {error}") from error

    def _listen(self) -> None:
        options = self._options
        self._undo.callback(self._close_listeners)
        self._listeners["TCP"] = listen(options.tcp_address)
        if options.http_address:
            self._listeners["HTTP"] = listen(options.http_address)
        if self._server_context is not None and options.https_address:
            self._listeners["HTTPS"] = listen(options.https_address)

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            remove_unix_socket(listener)
            listener.close()

    def _make_broker(self, id_floor_ns: int) -> None:
        options = self._options
        loop = asyncio.get_running_loop()
        self._descriptors = Descriptors(loop)
        self._undo.callback(self._descriptors.stop)
        self._descriptors.start()
        loop.set_exception_handler(self._handle_exception)
        ids = MessageIdFactory(options.node_id, floor_ns=id_floor_ns)
        scheduler = LoopScheduler(loop)
        self.broker = Broker(broker_settings(options), scheduler, ids)
        self.broker.open_file_system()
        disk_watch = DiskWatch(
            *(self._data_path, self.broker.disk_health, scheduler),
            min_free_bytes=options.min_free_disk,
            refuse=self.broker.refuse_publishes,
            free_room=self.broker.free_room,
        )
        self._undo.callback(disk_watch.stop)
        disk_watch.start()
        id_floor = IdFloor(self._data_path, ids, scheduler)
        self._undo.callback(_stop_noting_ids, id_floor)
        id_floor.start()

    def _load_queues(self, listing: Listing) -> None:
        try:
            known = metadata.load(self._data_path)
            self.broker.load(metadata.add_found(known, listing.queues), listing.queues)
        except metadata.MetadataError as error:
            raise StartError(f"failed to load metadata - {error}") from error
        except OSError as error:
            raise StartError(f"failed to open a queue - {error}") from error
        self.metadata = MetadataStore(self.broker, self._data_path)
        # Not before: a start that failed must leave the data path as it is.
        self._undo.push_async_callback(self._save_everything)
        try:
            self.metadata.save()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise StartError(f"failed to persist metadata - {error}") from error
            # Only consumers can make room on a full disk, and they need a running nsqd.
            self.metadata.refused(error)
        self.broker.listeners.append(self.metadata.on_change)

    async def _save_everything(self) -> None:
        """Write nsqd.dat and every message; an error is logged and becomes the exit code."""
        await self.metadata.close()
        try:
            async with asyncio.timeout(LAST_DEAD_LETTERS_S):
                await await_receipt(self.broker.sync_dead_letters())
        except TimeoutError:
            logger.warning("NSQ: dead letters are not durable, and come from their channels again")
        errors = []
        try:
            self.metadata.save()
        except OSError as error:
            errors.append(error)
        logger.info("NSQ: closing topics")
        errors += self.broker.close(run_in_threads)
        for failure in errors:
            logger.error("failed to save everything - %s", failure)
            self.ending.request(1)

    def _start_registration(self, token_file: TokenFile | None) -> asyncio.Task[None]:
        """Register the loaded topics; a new topic starts when nsqlookupd has told its channels."""
        settings = lookup_settings(
            self._options,
            self._ensure_http_client(),
            tcp_port=self.tcp_port,
            http_port=self.http_port,
            token_file=token_file,
        )
        self.registration = Registration(
            self._options.lookupd_tcp_addresses, settings, self.broker.topics
        )
        self.broker.listeners.append(self.registration.on_change)
        self.broker.starter = self.registration.start_topic
        return start_task(self.registration.run(), "registration")

    async def _serve(self, before: BeforeHook | None) -> Node:
        drain = Drain(
            self.broker,
            timeout_s=self._options.drain_timeout_s,
            withdraw=self.registration.withdraw,
            finish=self.ending.request,
        )
        if self._options.analytics:
            loop = asyncio.get_running_loop()
            self._analytics = Analytics(
                *(self.broker, LoopScheduler(loop), turns_of(loop), self._data_path),
                max_lease_count=self._options.snapshot_max_leases,
                max_lease_bytes=self._options.snapshot_max_bytes,
            )
            self._undo.callback(self._analytics.close)
            self.broker.on_short_room = self._analytics.leases.end_all
        loop_watch = self._undo.enter_context(
            logging_stalls(asyncio.get_running_loop(), on_lag=self._on_beat)
        )
        node = self._make_node(drain, loop_watch)
        # Undone from the last to the first: TCP, drain, statsd, HTTP.
        http_servers: list[HttpServer] = []
        self._undo.push_async_callback(_close_all, http_servers)
        statsd = make_statsd(node)
        if statsd is not None:
            self._undo.push_async_callback(end_task, start_task(statsd.run(), "statsd"))
        self._undo.push_async_callback(drain.close)
        await self._serve_tcp()
        await self._serve_http(make_router(node), before, http_servers)
        return node

    def _on_beat(self, lag_s: float) -> None:
        self._loop_lags.observe(lag_s)
        if self._memory is not None:
            self._memory.look()

    def _make_node(self, drain: Drain, loop_watch: LoopWatch) -> Node:
        return Node(
            options=self._options,
            broker=self.broker,
            connections=self._connections,
            start_time_s=time.time(),
            tcp_port=self.tcp_port,
            http_port=self.http_port,
            https_port=self.https_port,
            persist=self.metadata.persist,
            registration=self.registration,
            drain=drain,
            loop_lags=self._loop_lags,
            loop_watch=loop_watch,
            node_id=ensure_node_id(self._data_path),
            doors=self._doors,
            failed_handshakes=self._failed_handshakes,
            descriptors=self._descriptors,
            analytics=self._analytics,
        )

    async def _serve_tcp(self) -> None:
        loop = asyncio.get_running_loop()
        self._tcp = self._tcp_settings(loop)
        broker = self.broker
        listener = self._listeners["TCP"]
        logger.info("TCP: listening on %s", format_address(listener.getsockname()))
        server = await serve(listener, lambda: V2Connection(broker, self._tcp))
        self._undo.push_async_callback(self._stop_tcp, server)

    def _renew_tls(self, context: ssl.SSLContext) -> None:
        """Have new connections shake hands with this context; open ones keep theirs."""
        assert self._server_context is not None, "there is a door with TLS"
        self._failed_handshakes.watch(context)
        self._server_context.current = context

    async def _stop_tcp(self, server: asyncio.Server) -> None:
        """Take no more commands; close each connection when its last publish is answered."""
        for listener in self._listeners.values():
            remove_unix_socket(listener)
        server.close()
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPLIES_S):
                for connection in list(self._connections):
                    await connection.replies.wait_sent()
        if self._auth_servers is not None:
            self._auth_servers.close()

    async def _serve_http(
        self, router: Router, before: BeforeHook | None, servers: list[HttpServer]
    ) -> None:
        for scheme, context in (("HTTP", None), ("HTTPS", self._server_context)):
            listener = self._listeners.get(scheme)
            if listener is None:
                continue
            server = HttpServer(
                router,
                before=before,
                on_request=log_request,
                max_connections=self._options.max_connections or None,
                counts=self._doors["http"],
                descriptors=self._descriptors,
            )
            await server.start(listener, ssl=context)
            servers.append(server)
            logger.info("%s: listening on %s", scheme, format_address(listener.getsockname()))

    def _tcp_settings(self, loop: asyncio.AbstractEventLoop) -> TcpSettings:
        options = self._options
        on_read = None
        if options.spin_poll_s and (os.cpu_count() or 1) > 1:
            on_read = SpinPoll(loop, options.spin_poll_s).on_read
        if options.auth_http_addresses:
            self._auth_servers = AuthServers(
                options.auth_http_addresses,
                self._ensure_http_client(),
                method=options.auth_http_request_method,
            )
        return tcp_settings(
            options,
            ssl_context=self._server_context,
            auth_servers=self._auth_servers,
            on_read=on_read,
            connections=self._connections,
            counts=self._doors["tcp"],
            descriptors=self._descriptors,
        )

    def _ensure_http_client(self) -> HttpClient:
        if self._http_client is None:
            limits = http_client_limits(self._options)
            self._http_client = HttpClient(limits, ssl_context=self._client_context)
            self._undo.callback(self._http_client.close)
        return self._http_client

    def _handle_exception(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, object]
    ) -> None:
        """Handle an error that escaped a callback: log an OSError, stop the daemon after any other.

        A bug has shown then: memory can no longer be trusted, the disk can.
        """
        error = context.get("exception")
        if isinstance(error, OSError):
            if not self._descriptors.note_accept_error(error):
                logger.warning("%s - %s", context.get("message"), error)
            return
        loop.default_exception_handler(context)
        logger.critical("stopping after an internal error: %s", context.get("message"))
        self.ending.request(1)


def _stop_noting_ids(id_floor: IdFloor) -> None:
    try:
        id_floor.stop()
    except OSError as error:
        logger.warning("NSQ: failed to note the last message id - %s", error)


async def _close_all(servers: list[HttpServer]) -> None:
    for server in servers:
        await server.close()


def run(
    options: Options,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
    read_options: ReadOptions | None = None,
) -> int:
    """Run nsqd until it is told to stop; return the exit code.

    Args:
        read_options: reads command line and config file again, after a SIGHUP.
    """

    def make_daemon() -> Daemon:
        sweeper = GarbageSweeper(asyncio.get_running_loop())
        return Daemon(options, read_options, sweeper=sweeper, memory=memory)

    memory = MemoryAhead() if keep_freed_memory() else None
    return run_daemon(
        PROGRAM, make_daemon, loop_factory=loop_factory, last_work="Saving all messages"
    )
