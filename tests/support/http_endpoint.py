"""HttpEndpoint: an HTTP server for tests that answers by script and notes what came."""

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Seen:
    """A request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int


# Status, headers and body of the answer; a status of 0 resets the connection. A body is sent
# byte by byte if there is a header Slow with the seconds between them.
Answer = tuple[int, dict[str, str], bytes]
Script = Callable[["HttpEndpoint", str, bytes], Answer]


class HttpEndpoint:
    """A server on loopback, a context; `script` makes the answers."""

    def __init__(self, script: Script) -> None:
        self.seen: list[Seen] = []
        self.released = threading.Event()  # what a hanging answer waits for
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                endpoint._answer(self, script)

            do_GET = do_POST  # noqa: N815 - by http.server

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # Beyond it, connects would wait for a second.

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def accepted(self) -> list[bytes]:
        """The bodies that were answered with 2xx."""
        return [each.body for each in self.seen if 200 <= each.status < 300]

    def _answer(self, request: BaseHTTPRequestHandler, script: Script) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        status, headers, answer = script(self, request.path, body)
        self.seen.append(Seen(request.command, request.path, dict(request.headers), body, status))
        if not status:
            linger = (1).to_bytes(4, "little") + bytes(4)
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            request.close_connection = True
            os.close(request.connection.detach())
            return
        request.send_response(status)
        for name, value in {"Content-Length": str(len(answer)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        pause_s = float(headers.get("Slow", "0"))
        for part in [answer[at : at + 1] for at in range(len(answer))] if pause_s else [answer]:
            if status != 204:
                request.wfile.write(part)
            time.sleep(pause_s)
