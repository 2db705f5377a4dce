"""Reloader: SIGHUP has nsqd read its files again, without a client noticing.

    TLS certificate, key and authorities   new connections get them, open ones keep what they have
    tokens                                 of --http-auth-token-file and --lookupd-auth-token-file
    log level, addresses of nsqlookupd     from the config file, if there is one; a flag still wins

All files are read and checked before anything changes: a bad one leaves everything as it was.
Another option that has changed in the config file is named in the log, and takes a restart.
"""

import asyncio
import dataclasses
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from nsqd.config.flags import ConfigError, OptionsError
from nsqd.config.options import Options
from nsqd.config.program import take_over
from nsqd.config.token_file import TokenFile
from nsqd.http.client import HttpClient
from nsqd.node import Node
from nsqd.settings import build_client_context, build_server_context

logger = logging.getLogger(__name__)

# Reads command line and config file, and checks them.
ReadOptions = Callable[[], Options]

_TLS_FILES = ("tls_cert", "tls_key", "tls_root_ca_file")
_LOOKUPDS = "lookupd_tcp_addresses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the daemon that take over new values."""

    node: Node
    http_client: HttpClient
    tokens: tuple[TokenFile, ...]
    # Gives both doors another context; None if TLS is off.
    renew_tls: Callable[[ssl.SSLContext], None] | None


@dataclass(frozen=True, slots=True)
class _Fresh:
    """All that was read, checked and not yet put in force."""

    loaded: Options
    server_context: ssl.SSLContext | None
    client_context: ssl.SSLContext
    tokens: list[tuple[TokenFile, bytes]]


class Reloader:
    """Reload when asked to, one time after the other."""

    def __init__(self, options: Options, read_options: ReadOptions | None) -> None:
        """Args:
        options: those of the start.
        read_options: reads command line and config file; None where there are none.
        """
        self._loaded = options
        self._read_options = read_options
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Have everything read again; before `run` this waits for it."""
        self._wanted.set()

    async def run(self, parts: Parts) -> None:
        """Serve the requests until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                # In a thread: disks can be slow, and so is the check of a policy for certificates.
                fresh = await asyncio.to_thread(self._read, parts)
                self._apply(parts, fresh)
            except (ConfigError, OptionsError, OSError) as error:
                logger.error("RELOAD: failed, nothing has changed - %s", error)  # noqa: TRY400 - no traceback

    def _read(self, parts: Parts) -> _Fresh:
        loaded = self._loaded
        if loaded.config and self._read_options is not None:
            loaded = self._read_options()
        wanted = loaded
        server_context = None
        if parts.renew_tls is not None:
            wanted = self._with_tls_files(parts.node.options, loaded)
            server_context = build_server_context(wanted)
        client_context = build_client_context(wanted)
        tokens = [(token, token.read()) for token in parts.tokens]
        return _Fresh(loaded, server_context, client_context, tokens)

    def _with_tls_files(self, current: Options, loaded: Options) -> Options:
        """Return the options in force with the files that are to be read now."""
        if not (loaded.tls_cert or loaded.tls_key):
            return current  # TLS can't be switched off in a running nsqd
        return dataclasses.replace(current, **{name: getattr(loaded, name) for name in _TLS_FILES})

    def _apply(self, parts: Parts, fresh: _Fresh) -> None:
        node = parts.node
        renewed = {_LOOKUPDS}
        if fresh.server_context is not None:
            assert parts.renew_tls is not None, "a context is made only for doors with TLS"
            parts.renew_tls(fresh.server_context)
            node.options = self._with_tls_files(node.options, fresh.loaded)
            options = node.options
            logger.info("RELOAD: TLS cert=%s key=%s", options.tls_cert, options.tls_key)
            renewed.update(_TLS_FILES)
        parts.http_client.ssl_context = fresh.client_context
        if node.options.tls_root_ca_file:
            logger.info("RELOAD: TLS authorities=%s", node.options.tls_root_ca_file)
        for file, token in fresh.tokens:
            file.replace(token)
        if fresh.loaded.config:
            self._apply_config(node, fresh.loaded)
        take_over(self._loaded, fresh.loaded, others=renewed)
        self._loaded = fresh.loaded
        logger.info("RELOAD: done")

    def _apply_config(self, node: Node, loaded: Options) -> None:
        addresses, level = loaded.lookupd_tcp_addresses, loaded.log_level
        node.registration.set_addresses(addresses)
        logger.info("RELOAD: nsqlookupd addresses=%s", ",".join(addresses) or "none")
        node.options = dataclasses.replace(
            node.options, lookupd_tcp_addresses=addresses, log_level=level
        )
