"""Daemon: puts nsqd together, starts it, and stops it in the order that loses nothing.

The composition root: nobody imports it but `__main__` and the tests. Here options become the values
that each part needs, and here the few tasks and threads have their owner.
"""

import asyncio
import functools
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import nsqd
from nsqd.api.router import make_before_hook, make_router
from nsqd.broker import metadata
from nsqd.broker.broker import Broker
from nsqd.broker.health import FULL_ERRNOS
from nsqd.broker.queue.id_floor import IdFloor
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.config import options as option_checks
from nsqd.config.flags import OptionsError, version_text
from nsqd.config.logs import fatal_line
from nsqd.config.options import TOPOLOGY_AWARE_CONSUMPTION, Options, TLSRequired
from nsqd.http.client import ClientLimits, HttpClient
from nsqd.http.server import BeforeHook, HttpServer, log_request
from nsqd.lookup.channel_query import ChannelQuery
from nsqd.lookup.peer import PeerSettings
from nsqd.lookup.registration import LookupSettings, Registration
from nsqd.node import Node
from nsqd.protocol.lookup import PeerIdentity
from nsqd.runtime import tls
from nsqd.runtime.data_path import lock_directory, newest_change_ns
from nsqd.runtime.disk_watch import DiskWatch
from nsqd.runtime.drain import Drain
from nsqd.runtime.event_loop import (
    GarbageSweeper,
    LoopScheduler,
    SpinPoll,
    run_in_threads,
    start_task,
)
from nsqd.runtime.listen import (
    ListenError,
    format_address,
    listen,
    port_of,
    raise_open_files_limit,
    remove_unix_socket,
    serve,
)
from nsqd.runtime.metadata_store import MetadataStore
from nsqd.settings import broker_settings, command_limits, identify_limits
from nsqd.stats.statsd import make_statsd
from nsqd.tcp.auth import AuthServers
from nsqd.tcp.auth_patterns import Re2MissingError, require_re2
from nsqd.tcp.connection import TcpSettings, V2Connection

logger = logging.getLogger(__name__)


class StartError(Exception):
    """nsqd can't start; the text is what the operator reads."""


class Daemon:
    """One nsqd: `start`, then `wait`, then `stop`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._data_path = Path(options.data_path or ".")
        self._lock = -1
        self._server_context: ssl.SSLContext | None = None
        self._client_context: ssl.SSLContext | None = None
        self._listeners: dict[str, socket.socket] = {}
        self._tcp_server: asyncio.Server | None = None
        self._http_servers: list[HttpServer] = []
        self._drain: Drain | None = None
        self._disk_watch: DiskWatch | None = None
        self._id_floor: IdFloor | None = None
        self._statsd_task: asyncio.Task[None] | None = None
        self._connections: set[V2Connection] = set()
        self._http_client: HttpClient | None = None
        self._auth_servers: AuthServers | None = None
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._registration_task: asyncio.Task[None] | None = None
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

    async def start(self) -> None:
        """Lock the data path, listen, load what was there, and serve.

        Raises:
            StartError: with the reason.
        """
        try:
            self._lock = lock_directory(self._data_path)
            self._check_options()
            self._listen()
        except (OptionsError, tls.TlsConfigError, ListenError) as error:
            raise StartError(f"failed to instantiate nsqd - {error}") from error
        logger.info("%s", version_text("nsqd"))
        logger.info("ID: %d", self._options.node_id)
        try:
            self._make_broker()
        except OSError as error:
            raise StartError(f"failed to look at data-path - {error}") from error
        await self._load_metadata()
        self._start_registration()
        await self._serve()

    def request_stop(self, exit_code: int = 0) -> None:
        """Have `wait` return."""
        self._exit_code = max(self._exit_code, exit_code)
        self._stopping.set()

    async def wait(self) -> int:
        """Return the exit code once somebody asked to stop."""
        await self._stopping.wait()
        return self._exit_code

    async def stop(self) -> None:
        """Stop accepting, disconnect everybody, put everything on disk, release the lock."""
        # First of all, so that nobody is sent here any more.
        await _end(self._registration_task)
        for listener in self._listeners.values():
            remove_unix_socket(listener)
        if self._tcp_server is not None:
            self._tcp_server.close()
        for connection in list(self._connections):
            connection.close()
        self._end_requests()
        if self._drain is not None:
            await self._drain.close()
        await _end(self._statsd_task)
        for server in self._http_servers:
            await server.close()
        for listener in self._listeners.values():
            listener.close()
        self._stop_watching()
        if hasattr(self, "metadata"):  # else nothing was loaded, and what is there must stay
            await self.metadata.close()
            self._save_everything()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _end_requests(self) -> None:
        if self._auth_servers is not None:
            self._auth_servers.close()
        if self._http_client is not None:
            self._http_client.close()

    def _stop_watching(self) -> None:
        if self._disk_watch is not None:
            self._disk_watch.stop()
        if self._id_floor is not None:
            try:
                self._id_floor.stop()
            except OSError as error:
                logger.warning("NSQ: failed to note the last message id - %s", error)

    def _save_everything(self) -> None:
        logger.info("NSQ: persisting topic/channel metadata to %s", self._metadata_path)
        errors = []
        try:
            text = metadata.encode(self.broker.records(), nsqd.PROTOCOL_VERSION)
            metadata.save(self._data_path, text)
        except OSError as error:
            errors.append(error)
        logger.info("NSQ: closing topics")
        errors += self.broker.close(run_in_threads)
        for failure in errors:
            logger.error("failed to save everything - %s", failure)
            self._exit_code = 1

    def _check_options(self) -> None:
        """Make nsqd's start-up checks in nsqd's order."""
        options = self._options
        option_checks.check_limits(options)
        if options.tls_cert or options.tls_key:
            try:
                self._server_context = tls.build_server_context(
                    options.tls_cert,
                    options.tls_key,
                    client_auth_policy=options.tls_client_auth_policy,
                    root_ca_file=options.tls_root_ca_file,
                    min_version=options.tls_min_version,
                )
            except tls.TlsConfigError as error:
                raise OptionsError(f"failed to build TLS config - {error}") from error
        option_checks.check_tls(options)
        try:
            self._client_context = tls.build_client_context(
                options.tls_root_ca_file, options.tls_min_version
            )
        except tls.TlsConfigError as error:
            raise OptionsError(f"failed to build client TLS config - {error}") from error
        option_checks.check_services(options)
        if options.auth_http_addresses:
            try:
                require_re2()
            except Re2MissingError as error:
                raise OptionsError(f"--auth-http-address cannot be used: {error}") from error

    def _listen(self) -> None:
        options = self._options
        self._listeners["TCP"] = listen(options.tcp_address)
        if options.http_address:
            self._listeners["HTTP"] = listen(options.http_address)
        if self._server_context is not None and options.https_address:
            self._listeners["HTTPS"] = listen(options.https_address)

    def _make_broker(self) -> None:
        options = self._options
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._handle_exception)
        ids = MessageIdFactory(options.node_id, floor_ns=newest_change_ns(self._data_path))
        scheduler = LoopScheduler(loop)
        self.broker = Broker(broker_settings(options), scheduler, ids)
        self._disk_watch = DiskWatch(
            *(self._data_path, self.broker.disk_health, scheduler),
            min_free_bytes=options.min_free_disk,
            refuse=self.broker.refuse_publishes,
            free_room=self.broker.free_room,
        )
        self._disk_watch.start()
        self._id_floor = IdFloor(self._data_path, ids, scheduler)
        self._id_floor.start()

    async def _load_metadata(self) -> None:
        try:
            known = metadata.load(self._data_path)
            self.broker.load(metadata.add_found(known, self._data_path))
        except metadata.MetadataError as error:
            raise StartError(f"failed to load metadata - {error}") from error
        except OSError as error:
            raise StartError(f"failed to open a queue - {error}") from error
        self.metadata = MetadataStore(self.broker, self._data_path)
        logger.info("NSQ: persisting topic/channel metadata to %s", self._metadata_path)
        try:
            text = metadata.encode(self.broker.records(), nsqd.PROTOCOL_VERSION)
            metadata.save(self._data_path, text)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise StartError(f"failed to persist metadata - {error}") from error
            # Only consumers can make room on a full disk, and they need us to.
            self.metadata.refused(error)
        self.broker.listeners.append(self.metadata.on_change)

    @property
    def _metadata_path(self) -> Path:
        return self._data_path / metadata.FILE_NAME

    def _start_registration(self) -> None:
        """Register what was loaded; new topics start when their channels are known from now on."""
        self.registration = Registration(
            self._options.lookupd_tcp_addresses, self._lookup_settings(), self.broker.topics
        )
        self.broker.listeners.append(self.registration.on_change)
        self.broker.starter = self.registration.start_topic
        self._registration_task = start_task(self.registration.run(), "registration")

    def _lookup_settings(self) -> LookupSettings:
        options = self._options
        identity = PeerIdentity(
            broadcast_address=options.broadcast_address,
            tcp_port=options.broadcast_tcp_port or self.tcp_port,
            http_port=options.broadcast_http_port or self.http_port,
            version=nsqd.PROTOCOL_VERSION,
            hostname=socket.gethostname(),
            topology_zone=options.topology_zone,
            topology_region=options.topology_region,
        )
        return LookupSettings(
            peer=PeerSettings(identity=identity, max_reply_bytes=options.max_body_size),
            query=ChannelQuery(self._ensure_http_client()),
            query_timeout_s=options.http_client_request_timeout_s,
        )

    async def _serve(self) -> None:
        node = self._make_node()
        try:
            before = make_before_hook(node)
        except OptionsError as error:
            raise StartError(f"failed to instantiate nsqd - {error}") from error
        await self._serve_tcp()
        await self._serve_http(node, before)
        statsd = make_statsd(node)
        if statsd is not None:
            self._statsd_task = start_task(statsd.run(), "statsd")

    def _make_node(self) -> Node:
        self._drain = Drain(
            self.broker,
            timeout_s=self._options.drain_timeout_s,
            withdraw=self.registration.withdraw,
            finish=self.request_stop,
        )
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
            drain=self._drain,
        )

    async def _serve_http(self, node: Node, before: BeforeHook | None) -> None:
        router = make_router(node)
        for scheme, context in (("HTTP", None), ("HTTPS", self._server_context)):
            listener = self._listeners.get(scheme)
            if listener is None:
                continue
            server = HttpServer(
                router,
                before=before,
                on_request=log_request,
                max_connections=self._options.max_connections or None,
            )
            await server.start(listener, ssl=context)
            self._http_servers.append(server)
            logger.info("%s: listening on %s", scheme, format_address(listener.getsockname()))

    async def _serve_tcp(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._tcp_settings(loop)
        factory = functools.partial(V2Connection, self.broker, settings)
        listener = self._listeners["TCP"]
        logger.info("TCP: listening on %s", format_address(listener.getsockname()))
        self._tcp_server = await serve(listener, factory)

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
        return TcpSettings(
            commands=command_limits(options),
            identify=identify_limits(options, has_tls=self._server_context is not None),
            max_req_ms=int(options.max_req_timeout_s * 1000),
            handshake_timeout_s=options.handshake_timeout_s,
            ssl_context=self._server_context,
            is_tls_required=options.tls_required is not TLSRequired.NO,
            auth_servers=self._auth_servers,
            is_topology_aware=options.has_experiment(TOPOLOGY_AWARE_CONSUMPTION),
            on_read=on_read,
            max_connections=options.max_connections,
            connections=self._connections,
        )

    def _ensure_http_client(self) -> HttpClient:
        if self._http_client is None:
            options = self._options
            limits = ClientLimits(
                connect_timeout_s=options.http_client_connect_timeout_s,
                request_timeout_s=options.http_client_request_timeout_s,
            )
            self._http_client = HttpClient(limits, ssl_context=self._client_context)
        return self._http_client

    def _handle_exception(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, object]
    ) -> None:
        """What escapes a callback: a socket's trouble is logged, our own fault stops the daemon.

        Memory can no longer be trusted then; the disk can.
        """
        error = context.get("exception")
        if isinstance(error, OSError):
            logger.warning("%s - %s", context.get("message"), error)
            return
        loop.default_exception_handler(context)
        logger.critical("stopping after an internal error: %s", context.get("message"))
        self.request_stop(1)


async def _end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait until it is over; what went wrong in it has been reported."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _run(options: Options) -> int:
    raise_open_files_limit()
    daemon = Daemon(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # nsqd would die of a SIGHUP
        loop.add_signal_handler(number, daemon.request_stop)
    sweeper = GarbageSweeper(loop)
    try:
        await daemon.start()
        sweeper.start()
        await daemon.wait()
    except StartError as error:
        fatal_line("nsqd", str(error))
        return 1
    finally:
        sweeper.stop()
        await daemon.stop()
    logger.info("NSQ: bye")
    return await daemon.wait()


def run(options: Options, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> int:
    """Run nsqd until it is told to stop; return the exit code."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_run(options))
