"""Target: where a command goes, and with which credentials.

A flag comes before the environment, that before a context, that before 127.0.0.1. Addresses of a
flag or of the environment switch the whole context off, its credentials too: a secret never goes to
a host that it was not meant for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsqd.cli.output import CliError, ExitCode
from nsqd.client.errors import AuthError, TlsError

if TYPE_CHECKING:
    from nsqd.cli.contexts import Context
    from nsqd.client.settings import Tls
from nsqd.client.address import Address

# The settings beside addresses, each with its variable of the environment.
_VARIABLES: Final = {
    "tls": "",
    "tls_ca": "NSQ_TLS_CA",
    "tls_cert": "NSQ_TLS_CERT",
    "tls_key": "NSQ_TLS_KEY",
    "tls_insecure": "",
    "auth_secret_file": "NSQ_AUTH_SECRET_FILE",
    "token_file": "NSQ_TOKEN_FILE",
}


class Node(NamedTuple):
    """One nsqd: where it speaks V2, and where HTTP; either may be unknown."""

    tcp: Address | None
    http: str | None  # host:port, or a URL

    def __str__(self) -> str:
        return str(self.http or self.tcp)


class Target(NamedTuple):
    """The nodes and nsqlookupds of a command."""

    nodes: tuple[Node, ...] = ()
    lookupds: tuple[str, ...] = ()
    tls: Tls | None = None
    auth_secret: str | None = None
    token: str | None = None
    is_read_only: bool = False
    # The name of the context that the addresses come from, for questions and errors.
    context: str | None = None

    def __repr__(self) -> str:
        return f"Target({self.nodes}, {self.lookupds}, context={self.context!r})"  # no secrets

    @property
    def tcp_addresses(self) -> list[Address]:
        """The addresses of the nodes for the client."""
        return [node.tcp for node in self.nodes if node.tcp is not None]

    def connection_options(self) -> dict[str, Any]:
        """Return the keyword arguments of producers and consumers."""
        return {"tls": self.tls, "auth_secret": self.auth_secret}


class Setting(NamedTuple):
    """A setting that is not empty, and where it comes from: a flag, a variable, a context."""

    name: str
    value: Any
    source: str


def find_target(
    options: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> Target:
    """Put flags, environment and context together.

    Raises:
        CliError: an address or a file cannot be used, or there is no such context.
    """
    given = os.environ if environment is None else environment
    found = {each.name: each for each in find_settings(options, given)}
    values: dict[str, Any] = {name: each.value for name, each in found.items()}
    context = values.get("context")
    nodes = tuple(map(parse_node, values.get("nsqd", ())))
    nodes += tuple(Node(None, address) for address in values.get("nsqd_http", ()))
    return Target(
        nodes,
        tuple(values.get("lookupd", ())),
        _make_tls(values),
        _read_secret(values.get("auth_secret_file")),
        _read_secret(values.get("token_file")),
        bool(values.get("read_only")),
        context,
    )


def find_settings(options: argparse.Namespace, environment: Mapping[str, str]) -> list[Setting]:
    """Return the settings that a command would use, each with its source.

    Raises:
        CliError: there is no such context, or the contexts cannot be read.
    """
    found = _find_addresses(options, environment)
    context, saved = None, None
    if not found:
        context, saved = _choose_context(options, environment)
        source = f"context {context}"
        if saved is not None:
            chosen = (("nsqd", list(saved.nsqd)), ("lookupd", list(saved.lookupd)))
            found = [Setting(name, value, source) for name, value in chosen if value]
        if not found:
            found = [Setting("nsqd", ["127.0.0.1"], "default")]
    if context is not None:
        found.insert(0, Setting("context", context, _source_of_context(options, environment)))
    for name, variable in _VARIABLES.items():
        places = (
            (getattr(options, name), f"--{name.replace('_', '-')}"),
            (environment.get(variable) if variable else None, f"${variable}"),
            (getattr(saved, name, None), f"context {context}"),
        )
        value, source = next((each for each in places if each[0]), (None, ""))
        if value:
            found.append(Setting(name, value, source))
    if saved is not None and saved.read_only:
        found.append(Setting("read_only", True, f"context {context}"))
    return found


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
) -> tuple[str | None, Context | None]:
    if options.no_context:
        return None, None
    from nsqd.cli import contexts  # Here: with an address there is no context.

    saved = contexts.load()
    name = options.context or environment.get("NSQ_CONTEXT") or saved.current
    return (None, None) if name is None else (name, saved.get(name))


def _source_of_context(options: argparse.Namespace, environment: Mapping[str, str]) -> str:
    if options.context:
        return "--context"
    return "$NSQ_CONTEXT" if environment.get("NSQ_CONTEXT") else "nsq context select"


def _find_addresses(options: argparse.Namespace, environment: Mapping[str, str]) -> list[Setting]:
    """Return the addresses of flags, or else those of the environment."""
    flags = [Setting("nsqd", list(options.nsqd), "--nsqd"),
             Setting("lookupd", list(options.lookupd), "--lookupd")]  # fmt: skip
    if options.nsqd or options.lookupd:
        return [each for each in flags if each.value]
    if options.context:
        return []
    nsqds = _split(environment.get("NSQD_TCP_ADDRESS"))
    https = _split(environment.get("NSQD_HTTP_ADDRESS"))
    lookupds = _split(environment.get("NSQLOOKUPD_HTTP_ADDRESS"))
    if nsqds and len(nsqds) == len(https):
        ports = [address.rpartition(":")[2] for address in https]
        nsqds, https = list(map(":".join, zip(nsqds, ports, strict=True))), []
    found = [
        Setting("nsqd", nsqds, "$NSQD_TCP_ADDRESS"),
        Setting("nsqd_http", https, "$NSQD_HTTP_ADDRESS"),
        Setting("lookupd", lookupds, "$NSQLOOKUPD_HTTP_ADDRESS"),
    ]
    return [each for each in found if each.value]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _make_tls(values: Mapping[str, Any]) -> Tls | None:
    ca, cert, key = (values.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))
    is_insecure = bool(values.get("tls_insecure"))
    if not (values.get("tls") or ca or cert or is_insecure):
        return None
    from nsqd.client.settings import Tls  # Here: slow to load, and most targets have no TLS.

    return Tls(_expand(ca), _expand(cert), _expand(key), verifies=not is_insecure)


def _expand(path: str | None) -> str | None:
    return None if path is None else os.path.expanduser(path)


def _read_secret(path: str | None) -> str | None:
    if not path:
        return None
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeError) as error:
        raise CliError(f"{path}: {error}") from error


def find_exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error of the client: secrets and certificates have their own."""
    is_forbidden = isinstance(error, AuthError | TlsError)
    cause = error.__cause__
    if not is_forbidden and cause is not None:
        return find_exit_code(cause)
    return ExitCode.FORBIDDEN if is_forbidden else ExitCode.FAILED
