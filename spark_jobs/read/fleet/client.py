"""One node, spoken to over HTTP: a connection that is kept, and made anew when it breaks.

Every request here may be sent twice: a snapshot whose answer was lost ends by itself.
"""

import http.client
import json
import logging
import os
import time
from email.message import Message
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_jobs.read.fleet.options import FleetOptions

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 3.0
# A node that does not answer in time is asked once more: each try takes the whole timeout.
_MAX_HANGS = 1
_MAX_JSON_BYTES = 1024 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_MAX_TOKEN_BYTES = 64 * 1024
_PARTIAL = 206
_NOT_MODIFIED = 304
_RANGE_NOT_SATISFIABLE = 416
# nsqd may answer otherwise in a moment.
_TEMPORARY = (500, 502, 503, 504)
_RETRYABLE = (OSError, http.client.HTTPException)

_logger = logging.getLogger(__name__)


class NodeError(Exception):
    """Raised when a node cannot be reached or refuses; its text names the node."""


class RefusedError(NodeError):
    """Raised when a node answers with an error; `code` is nsqd's word for it."""

    def __init__(self, node: str, status: int, code: str) -> None:
        super().__init__(f"node {node}: {status} {code}{_explain(status, code)}")
        self.status = status
        self.code = code


def _explain(status: int, code: str) -> str:
    if status == 401:
        return ": it asks for a token, see the option authTokenFile"
    if status == 404 and code == "NOT_FOUND":
        return (
            ": it does not serve its queues. The original nsqd does not: read its data path instead"
        )
    return {
        "ANALYTICS_DISABLED": ": it was started with --analytics=false",
        "TOO_MANY_LEASES": ": too many snapshots at a time; they end after the option lease, or at"
        " the end of `with snapshot(...)`; --snapshot-max-leases allows more",
        "LEASE_NOT_FOUND": ": its snapshot has ended: the lease ran out (option lease), nsqd was"
        " started again or ran short of disk. Load the DataFrame again",
    }.get(code, "")


class NodeClient:
    """Requests to one node; not for several threads at a time."""

    def __init__(self, url: str, options: FleetOptions) -> None:
        """Prepare; the first request connects.

        Args:
            url: `http://host:port` or `https://host:port`.
        """
        self.url = url
        parts = urlsplit(url)
        self.name = parts.netloc
        self._host, self._port = parts.hostname or "", parts.port
        self._is_tls = parts.scheme == "https"
        self._options = options
        self._connection: http.client.HTTPConnection | None = None

    def fetch_json(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[Any, str | None]:
        """Make a request; return the parsed answer and its ETag; None for 304 or an empty answer.

        Raises:
            NodeError: the node cannot be reached, refuses, or answers no JSON.
        """

        def read(response: http.client.HTTPResponse) -> tuple[Any, str | None]:
            if response.status == _NOT_MODIFIED:
                response.read()
                return None, response.getheader("ETag")
            text = _read_body(response, _MAX_JSON_BYTES)
            try:
                return (json.loads(text) if text.strip() else None), response.getheader("ETag")
            except ValueError as error:
                raise NodeError(f"node {self.name}: its answer is no JSON: {error}") from error

        return self._request(method, target, body, headers or {}, read)  # type: ignore[no-any-return]

    def read_range(self, target: str, start: int, view: memoryview) -> int:
        """Fill a buffer with the bytes of a file from an offset on; fewer only at its end.

        Raises:
            NodeError: the node cannot be reached, or refuses.
        """

        def read(response: http.client.HTTPResponse) -> int:
            if response.status == _RANGE_NOT_SATISFIABLE:
                response.read()
                return 0
            if response.status != _PARTIAL:
                raise NodeError(f"node {self.name}: no range but {response.status} for {target}")
            length = min(int(response.getheader("Content-Length") or 0), len(view))
            done = 0
            while done < length:
                count = response.readinto(view[done:length])
                if count == 0:
                    raise ConnectionError("the connection broke within an answer")
                done += count
            response.read()
            return done

        headers = {"Range": f"bytes={start}-{start + len(view) - 1}"}
        return self._request("GET", target, None, headers, read)  # type: ignore[no-any-return]

    def read_file(self, target: str, max_bytes: int) -> tuple[bytes, Message]:
        """Return the content of a file, cut off behind max_bytes, and the headers of the answer.

        Raises:
            NodeError: the node cannot be reached, or refuses.
        """

        def read(response: http.client.HTTPResponse) -> tuple[bytes, Message]:
            content = _read_body(response, max_bytes)
            if response.read(1):
                self.close()
            return content, response.headers

        return self._request("GET", target, None, {}, read)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the connection; a further request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], read: Any
    ) -> Any:
        """Make a request until there is an answer, or too many tries have failed."""
        failure_count = hang_count = 0
        while True:
            # nsqd closes connections that are idle, and all of them when it is started again.
            is_kept = self._connection is not None
            try:
                return self._try(method, target, body, headers, read)
            except RefusedError as error:
                if error.status not in _TEMPORARY:
                    raise
                cause: Exception = error
            except _RETRYABLE as error:
                if _is_no_http(error) and not is_kept:
                    self.close()
                    raise NodeError(
                        f"node {self.name} does not speak HTTP: is that its TCP port?"
                    ) from error
                cause = error
            except BaseException:
                # The rest of an answer may still be on its way.
                self.close()
                raise
            self.close()
            if is_kept and not isinstance(cause, RefusedError):
                continue
            failure_count += 1
            hang_count += isinstance(cause, TimeoutError)
            if failure_count > self._options.retry_count or hang_count > _MAX_HANGS:
                if isinstance(cause, RefusedError):
                    raise cause
                raise NodeError(
                    f"node {self.name} cannot be reached: {cause} (tried {failure_count} times)"
                ) from cause
            time.sleep(min(_FIRST_PAUSE_S * 2 ** (failure_count - 1), _MAX_PAUSE_S))

    def _try(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], read: Any
    ) -> Any:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request(method, target, body, headers | self._credentials())
        response = self._connection.getresponse()
        if response.status >= 400 and response.status != _RANGE_NOT_SATISFIABLE:
            text = response.read(_MAX_ERROR_BYTES)
            if response.read(1):
                self.close()
            raise RefusedError(self.name, response.status, _error_code(text))
        return read(response)

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = self._options.timeout_s
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        tls = self._options.tls
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=tls.context() if tls else None
        )

    def _credentials(self) -> dict[str, str]:
        path = self._options.token_file
        if path is None:
            return {}
        try:
            token = Path(path).read_bytes()[:_MAX_TOKEN_BYTES].decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NodeError(f"cannot read the token in {path}: {error}") from error
        return {"Authorization": f"Bearer {token}"}


def _read_body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Return the body of an answer, cut off behind max_bytes.

    Raises:
        ConnectionError: the connection broke within it, of which http.client says nothing.
    """
    content = response.read(max_bytes)
    expected = response.getheader("Content-Length")
    if expected is not None and len(content) < min(int(expected), max_bytes):
        raise ConnectionError("the connection broke within an answer")
    return content


def _is_no_http(error: Exception) -> bool:
    """Tell whether there was an answer that is none of HTTP, as of nsqd's TCP protocol."""
    is_broken_off = isinstance(error, http.client.RemoteDisconnected)
    return isinstance(error, http.client.BadStatusLine) and not is_broken_off


def _error_code(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "backslashreplace").strip()


def find_client(url: str, options: FleetOptions, purpose: str = "") -> NodeClient:
    """Return the client of a node that this process keeps for a purpose; one thread uses it."""
    return _find_client(os.getpid(), url, options, purpose)


@lru_cache(maxsize=256)
def _find_client(process_id: int, url: str, options: FleetOptions, purpose: str) -> NodeClient:
    return NodeClient(url, options)
