"""ClientAuth: what one client may do, as the auth servers say."""

import asyncio
import logging
import time
from functools import partial

from nsqd.protocol.errors import ErrorCode, FatalClientError, go_quote
from nsqd.runtime.tls import TlsCodec
from nsqd.tcp.auth import AuthError, AuthState
from nsqd.tcp.settings import TcpSettings

logger = logging.getLogger(__name__)


class ClientAuth:
    """Holds the client's secret and rights. All checks raise what the client is answered."""

    def __init__(self, server: TcpSettings) -> None:
        self.state: AuthState | None = None
        self.is_required = server.authenticate is not None
        self._server = server
        self._secret = b""

    @property
    def is_expired(self) -> bool:
        """Whether rights have been given that have run out."""
        return self.state is not None and self.state.is_expired(time.monotonic())

    def check(self, verb: str, topic: str, channel: str = "") -> None:
        """Check what the client may do; rights that have run out have been renewed before."""
        if not self.is_required:
            return
        if self.state is None or not self.state.permission_count:
            raise FatalClientError(ErrorCode.E_AUTH_FIRST, f"AUTH required before {verb}")
        permission = "subscribe" if verb == "SUB" else "publish"
        if not self.state.is_allowed(permission, topic, channel):
            text = f"AUTH failed for {verb} on {go_quote(topic)} {go_quote(channel)}"
            raise FatalClientError(ErrorCode.E_UNAUTHORIZED, text)

    def begin(self, secret: bytes) -> None:
        """Take the secret of an AUTH command."""
        if self.state is not None and self.state.permission_count:
            raise FatalClientError(ErrorCode.E_INVALID, "AUTH already set")
        if not self.is_required:
            raise FatalClientError(ErrorCode.E_AUTH_DISABLED, "AUTH disabled")
        self._secret = secret

    def ask(self, remote_ip: str, tls: TlsCodec | None) -> asyncio.Future[AuthState]:
        """Ask the auth servers in a thread."""
        authenticate = self._server.authenticate
        assert authenticate is not None
        common_name = "" if tls is None else tls.peer_common_name
        query = partial(authenticate, self._secret, remote_ip, common_name, tls is not None)
        return asyncio.get_running_loop().run_in_executor(self._server.auth_threads, query)

    def take(self, answer: asyncio.Future[AuthState], remote_address: str) -> None:
        """Take what the auth servers have answered."""
        error = answer.exception()
        if isinstance(error, AuthError):
            logger.warning("client(%s) - auth failed: %s", remote_address, error)
            raise FatalClientError(ErrorCode.E_AUTH_FAILED, "AUTH failed") from error
        self.state = answer.result()

    def reply(self) -> bytes:
        """What AUTH is answered."""
        assert self.state is not None
        if not self.state.permission_count:
            raise FatalClientError(ErrorCode.E_UNAUTHORIZED, "AUTH no authorizations found")
        return self.state.encode_reply()
