"""GET and PUT /config/:opt: the options in force, and the two that can change at run time.

A changed option is back to its flag after a restart, as in nsqd.
"""

import dataclasses
import json

from nsqd.config import logs
from nsqd.config.options import config_value
from nsqd.config.redaction import redact_argument
from nsqd.http.server import HttpError, Request, Response, Router
from nsqd.node import Node
from nsqd.stats.statsd import expand_prefix


class ConfigRoutes:
    """The routes that show and change options."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        router.add("GET", "/config/:opt", self._get)
        router.add(
            *("PUT", "/config/:opt", self._put),
            max_body_bytes=self._node.options.max_msg_size,
            too_large_code="INVALID_VALUE",
        )

    def _get(self, request: Request) -> Response:
        node = self._node
        [key] = request.params
        try:
            value = config_value(node.options, key)
        except KeyError as error:
            raise HttpError(400, "INVALID_OPTION") from error
        # Three are shown as they are used, as nsqd does.
        if key == "statsd_prefix":
            value = expand_prefix(node)
        elif key == "broadcast_tcp_port":
            value = node.broadcast_tcp_port
        elif key == "broadcast_http_port":
            value = node.broadcast_http_port
        elif key == "auth_http_addresses":
            # The reader of the options need not know the secrets for the auth server.
            value = list(map(redact_argument, node.options.auth_http_addresses))
        return Response.text(value) if isinstance(value, str) else Response.json(value)

    def _put(self, request: Request) -> Response:
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        [key] = request.params
        try:
            if key == "log_level":
                self._set_log_level(request.body)
            elif key == "nsqlookupd_tcp_addresses":
                self._set_lookupd_addresses(request.body)
            else:
                raise HttpError(400, "INVALID_OPTION")
        except ValueError as error:
            raise HttpError(400, "INVALID_VALUE") from error
        return self._get(request)

    def _set_log_level(self, body: bytes) -> None:
        level = logs.parse_log_level(body.decode())
        logs.set_level(level)
        self._node.options = dataclasses.replace(self._node.options, log_level=level)

    def _set_lookupd_addresses(self, body: bytes) -> None:
        try:
            addresses = json.loads(body)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if addresses is None:
            addresses = []
        if not isinstance(addresses, list) or not all(isinstance(item, str) for item in addresses):
            raise ValueError("not a list of strings")
        if not all(map(str.isprintable, addresses)):
            # They go to the log and to /metrics, and a lone surrogate would spoil both.
            raise ValueError("an address with characters that no address has")
        chosen = tuple(addresses)
        self._node.registration.set_addresses(chosen)
        self._node.options = dataclasses.replace(self._node.options, lookupd_tcp_addresses=chosen)
