"""AuthServer: a little HTTP auth server in a thread, whose answers a test chooses."""

import contextlib
import json
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the server saw it."""

    method: str
    path: str
    parameters: dict[str, str]


def allow(
    topic: str = ".*",
    channels: tuple[str, ...] = (".*",),
    permissions: tuple[str, ...] = ("publish", "subscribe"),
) -> dict[str, Any]:
    """Return an entry of an answer."""
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def answer(*entries: dict[str, Any], ttl: float = 3600) -> dict[str, Any]:
    """Return a good answer with these entries."""
    return {
        "ttl": ttl,
        "identity": "somebody",
        "identity_url": "http://somebody.example",
        "authorizations": list(entries),
    }


class _Server(ThreadingHTTPServer):
    # Closing does not wait for connections: their other end may be in the event loop of the test,
    # which stands still meanwhile.
    daemon_threads = True
    # A crowd connects at once; with the usual 5, the kernel would make the rest try again later.
    request_queue_size = 128


class AuthServer:
    """Answers by secret; an unknown one is forbidden. Every request is noted in `asked`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        # The reply by secret: the status, and the body as JSON or as it is.
        self.answers: dict[str, tuple[int, Any]] = {}
        # Requests wait for it before they are answered.
        self.gate = threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = urllib.parse.urlsplit(self.path).query
                parsed = urllib.parse.parse_qs(query, keep_blank_values=True)
                self._reply(parsed)

            def do_POST(self) -> None:
                self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _reply(self, parsed: dict[str, list[str]]) -> None:
                parameters = {key: value for key, [value] in parsed.items()}
                path = urllib.parse.urlsplit(self.path).path
                outer.asked.append(Asked(self.command, path, parameters))
                outer.gate.wait(30)
                status, reply = outer.answers.get(parameters["secret"], (403, {}))
                body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                with contextlib.suppress(BrokenPipeError):  # who asked may have given up
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._server.server_port}"

    def grant(self, secret: str, *entries: dict[str, Any], ttl: float = 3600) -> None:
        """Answer this secret with these entries."""
        self.answers[secret] = (200, answer(*entries, ttl=ttl))
