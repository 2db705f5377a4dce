"""ClientAuth: the rights of one client, as an auth server has given them."""

import asyncio
import logging
import time

from nsqd.protocol.errors import ErrorCode, FatalClientError, go_quote
from nsqd.runtime.tls import TlsCodec
from nsqd.tcp.auth import PUBLISH, SUBSCRIBE, AuthError, AuthServers, AuthState, Question

logger = logging.getLogger(__name__)


class ClientAuth:
    """Hold the client's secret and rights. A check raises the error that the client is sent."""

    def __init__(self, servers: AuthServers | None) -> None:
        """Args: servers: None if clients need no AUTH."""
        self.state: AuthState | None = None
        # Whether clients must AUTH before they publish or subscribe; asked for every publish.
        self.is_required = servers is not None
        self._servers = servers
        self._secret = b""

    @property
    def is_expired(self) -> bool:
        """Whether rights have been given that have run out."""
        return self.state is not None and self.state.is_expired(time.monotonic())

    def check(self, verb: str, topic: str, channel: str = "") -> None:
        """Check that the client may run a command; expired rights have been renewed before.

        Raises:
            FatalClientError: E_AUTH_FIRST or E_UNAUTHORIZED.
        """
        if self._servers is None:
            return
        if self.state is None or not self.state.permission_count:
            raise FatalClientError(ErrorCode.E_AUTH_FIRST, f"AUTH required before {verb}")
        permission = SUBSCRIBE if verb == "SUB" else PUBLISH
        if not self.state.is_allowed(permission, topic, channel):
            text = f"AUTH failed for {verb} on {go_quote(topic)} {go_quote(channel)}"
            raise FatalClientError(ErrorCode.E_UNAUTHORIZED, text)

    def begin(self, secret: bytes) -> None:
        """Remember the secret of an AUTH command.

        Raises:
            FatalClientError: AUTH is disabled, or the client has its rights already.
        """
        if self.state is not None and self.state.permission_count:
            raise FatalClientError(ErrorCode.E_INVALID, "AUTH already set")
        if self._servers is None:
            raise FatalClientError(ErrorCode.E_AUTH_DISABLED, "AUTH disabled")
        self._secret = secret

    def ask(self, remote_ip: str, tls: TlsCodec | None) -> asyncio.Future[AuthState]:
        """Ask the auth servers; give the finished future to `use_answer`."""
        assert self._servers is not None
        common_name = "" if tls is None else tls.peer_common_name
        question = Question(self._secret, remote_ip, common_name, is_tls=tls is not None)
        return self._servers.ask(question)

    def use_answer(self, answer: asyncio.Future[AuthState], remote_address: str) -> None:
        """Give the client the rights of an answer.

        Raises:
            FatalClientError: no auth server gave a usable answer.
        """
        error = answer.exception()
        if isinstance(error, AuthError):
            logger.warning("client(%s) - auth failed: %s", remote_address, error)
            raise FatalClientError(ErrorCode.E_AUTH_FAILED, "AUTH failed") from error
        self.state = answer.result()

    def reply(self) -> bytes:
        """Return the reply to AUTH.

        Raises:
            FatalClientError: the answer grants nothing.
        """
        assert self.state is not None
        if not self.state.permission_count:
            raise FatalClientError(ErrorCode.E_UNAUTHORIZED, "AUTH no authorizations found")
        return self.state.encode_reply()
