"""A consumer in a thread, for tests whose own thread waits for the browser."""

import contextlib
import json
import socket
import threading
from types import TracebackType
from typing import Self

_RESPONSE, _MESSAGE = 0, 2


class Consumer:
    """Takes messages of a channel and finishes or requeues them; `bodies` has what came."""

    def __init__(
        self,
        address: tuple[str, int],
        topic: str,
        channel: str,
        *,
        ready: int = 100,
        is_failing: bool = False,
        **about: object,
    ) -> None:
        """Args: is_failing: requeue every message at once."""
        self.bodies: list[bytes] = []
        self._is_failing = is_failing
        self._socket = socket.create_connection(address)
        identity = json.dumps({"client_id": "test", "hostname": "tests", **about}).encode()
        self._socket.sendall(
            b"  V2IDENTIFY\n"
            + len(identity).to_bytes(4, "big")
            + identity
            + f"SUB {topic} {channel}\nRDY {ready}\n".encode()
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, if the daemon has not."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with self._socket.makefile("rb") as stream:
            while head := stream.read(8):
                size, kind = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
                data = stream.read(size - 4)
                if kind == _MESSAGE:
                    self.bodies.append(data[26:])
                    message_id = data[10:26]
                    self._socket.sendall(
                        b"REQ %b 0\n" % message_id if self._is_failing else b"FIN %b\n" % message_id
                    )
                elif kind == _RESPONSE and data == b"_heartbeat_":
                    self._socket.sendall(b"NOP\n")
