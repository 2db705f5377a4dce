"""TokenFile: the shared secret that a file holds, followed when the file changes.

A secret stands in a file and never in a flag, which every user of the machine can read. The token
is in no log line, no error and no repr.
"""

import hmac
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from nsqd.config.flags import OptionsError

logger = logging.getLogger(__name__)

# How often the file is looked at, so that a new token needs no restart.
TOKEN_CHECK_S = 1.0
MAX_TOKEN_BYTES = 4096

_TOKEN = re.compile(rb"[!-~]+")


class TokenFile:
    """The token of one file; an unreadable file leaves the old one in force."""

    def __init__(
        self, path: str, *, flag: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
            flag: the option that names the file, for errors and log lines.

        Raises:
            OptionsError: the file holds no token.
        """
        self._path = Path(path)
        self._flag = flag
        self._clock = clock
        self._checked_at = clock()
        self._identity = self._identify()
        self._token = self.read()

    @property
    def token(self) -> bytes:
        """The token in force; the file is looked at once a second at most."""
        if self._clock() - self._checked_at >= TOKEN_CHECK_S:
            self._follow()
        return self._token

    def matches(self, token: bytes) -> bool:
        """Say whether this is the token, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(token, self.token)

    def read(self) -> bytes:
        """Return the token that the file holds now, which is not in force yet.

        Raises:
            OptionsError: the file holds none.
        """
        path = self._path
        try:
            # A pipe without a writer would be waited for.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1) or b""
        except OSError as error:
            raise OptionsError(f"failed to read --{self._flag} - {error}") from error
        token = token.strip()
        # Printable ASCII without blanks, as it stands in a header.
        if len(token) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(token):
            raise OptionsError(f"--{self._flag} {path} does not hold one token")
        return token

    def replace(self, token: bytes) -> None:
        """Put a token in force that was read just now."""
        self._checked_at = self._clock()
        self._identity = self._identify()
        self._token = token
        logger.info("--%s: token read again from %s", self._flag, self._path)

    def _follow(self) -> None:
        self._checked_at = self._clock()
        identity = self._identify()
        if identity == self._identity:
            return
        self._identity = identity
        try:
            self._token = self.read()
        except OptionsError as error:
            logger.warning("keeping the old token: %s", error)
        else:
            logger.info("--%s: file changed, the new token holds", self._flag)

    def _identify(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
