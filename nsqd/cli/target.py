"""Target: where a command goes, and with which credentials.

A flag comes before the environment, that before a context, that before 127.0.0.1. Addresses of a
flag or of the environment switch the whole context off, its credentials too: a secret never goes to
a host that it was not meant for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsqd.cli import contexts
from nsqd.cli.contexts import Context
from nsqd.cli.output import CliError, ExitCode
from nsqd.client.settings import Address, Tls


@dataclass(frozen=True, slots=True)
class Node:
    """One nsqd: where it speaks V2, and where HTTP; either may be unknown."""

    tcp: Address | None
    http: str | None  # host:port, or a URL

    def __str__(self) -> str:
        return str(self.http or self.tcp)


@dataclass(frozen=True, slots=True)
class Target:
    """The nodes and nsqlookupds of a command."""

    nodes: tuple[Node, ...] = ()
    lookupds: tuple[str, ...] = ()
    tls: Tls | None = None
    auth_secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    is_read_only: bool = False
    # The name of the context that the addresses come from, for questions and errors.
    context: str | None = None

    @property
    def tcp_addresses(self) -> list[Address]:
        """The addresses of the nodes for the client."""
        return [node.tcp for node in self.nodes if node.tcp is not None]

    def connection_options(self) -> dict[str, Any]:
        """Return the keyword arguments of producers and consumers."""
        return {"tls": self.tls, "auth_secret": self.auth_secret}


def find_target(
    options: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> Target:
    """Put flags, environment and context together.

    Raises:
        CliError: an address or a file cannot be used, or there is no such context.
    """
    given = os.environ if environment is None else environment
    name, context = _choose_context(options, given)
    nsqds, lookupds, http_only = _addresses(options, given)
    if nsqds or lookupds or http_only:
        name, context = None, Context()
    else:
        nsqds, lookupds = list(context.nsqd), list(context.lookupd)
        if not nsqds and not lookupds:
            nsqds = ["127.0.0.1"]
    nodes = tuple(map(parse_node, nsqds)) + tuple(Node(None, address) for address in http_only)
    secret_file = options.auth_secret_file or given.get("NSQ_AUTH_SECRET_FILE")
    secret_file = secret_file or context.auth_secret_file
    return Target(
        nodes,
        tuple(lookupds),
        _make_tls(options, given, context),
        _read_secret(
            options.auth_secret_file
            or given.get("NSQ_AUTH_SECRET_FILE")
            or context.auth_secret_file
        ),
        _read_secret(options.token_file or given.get("NSQ_TOKEN_FILE") or context.token_file),
        context.read_only,
        name,
    )


def parse_node(text: str) -> Node:
    """Read HOST[:TCP[:HTTP]] or the path of a unix socket.

    Raises:
        CliError: it is neither.
    """
    try:
        if "/" in text:
            return Node(Address.parse(text), None)
        host, _, http_port = text.rpartition(":") if text.count(":") == 2 else (text, "", "")
        address = Address.parse(host)
        port = int(http_port) if http_port else address.port + 1
        return Node(address, str(Address(address.host, port)))
    except ValueError as error:
        raise CliError(str(error), ExitCode.USAGE) from error


def _choose_context(
    options: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[str | None, Context]:
    if options.no_context:
        return None, Context()
    current, known = contexts.load()
    name = options.context or environment.get("NSQ_CONTEXT") or current
    if name is None:
        return None, Context()
    if name not in known:
        raise CliError(f"no context {name!r}", ExitCode.MISSING)
    return name, known[name]


def _addresses(
    options: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """Return nsqds, nsqlookupds, and nsqds of which only HTTP is known."""
    if options.nsqd or options.lookupd:
        return list(options.nsqd), list(options.lookupd), []
    if options.context:
        return [], [], []
    nsqds = _split(environment.get("NSQD_TCP_ADDRESS"))
    https = _split(environment.get("NSQD_HTTP_ADDRESS"))
    lookupds = _split(environment.get("NSQLOOKUPD_HTTP_ADDRESS"))
    if nsqds and len(nsqds) == len(https):
        ports = [address.rpartition(":")[2] for address in https]
        return list(map(":".join, zip(nsqds, ports, strict=True))), lookupds, []
    return nsqds, lookupds, https


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _make_tls(
    options: argparse.Namespace, environment: Mapping[str, str], context: Context
) -> Tls | None:
    ca = options.tls_ca or environment.get("NSQ_TLS_CA") or context.tls_ca
    cert = options.tls_cert or environment.get("NSQ_TLS_CERT") or context.tls_cert
    key = options.tls_key or environment.get("NSQ_TLS_KEY") or context.tls_key
    is_insecure = options.tls_insecure or context.tls_insecure
    if not (options.tls or context.tls or ca or cert or is_insecure):
        return None
    return Tls(_expand(ca), _expand(cert), _expand(key), verifies=not is_insecure)


def _expand(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser())


def _read_secret(path: str | None) -> str | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise CliError(f"{path}: {error}") from error
