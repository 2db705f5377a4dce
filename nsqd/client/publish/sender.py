"""Sender: takes batches from a queue and gets each of them accepted by an nsqd.

A sender has one connection at a time. It is some commands ahead of their answers, which come in the
order of the commands. When a connection ends, its unanswered batches go back to the front of the
queue, for the next connection of this or another sender: none is lost, some may arrive twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from nsqd.client.address import Address
from nsqd.client.connection import Connection, connect
from nsqd.client.errors import (
    AuthError,
    ConnectError,
    ConnectionLostError,
    MessageTooLargeError,
    NegotiationError,
    NsqError,
    PublishError,
    RefusedError,
    TlsError,
)
from nsqd.client.pauses import Pauses
from nsqd.client.publish.batch import Batch, mpub_bytes
from nsqd.client.publish.queue import PublishQueue
from nsqd.client.settings import Settings
from nsqd.client.stats import Observer, ProducerStats
from nsqd.protocol.client_wire import OK, RawMessage

_logger = logging.getLogger("nsqd.client")

# A batch that was the first without an answer on so many lost connections in a row may be what
# nsqd ends them for, with an error frame that the reset swallowed. Its halves are tried, and what
# is left in the end fails alone: an MPUB that was too large arrives, a bad message harms no other.
_MAX_LOST_COUNT: Final = 3

# nsqd cannot publish at the moment; every other error is a refusal of this command.
_TEMPORARY: Final = ("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED")
_AUTH: Final = ("E_AUTH", "E_UNAUTHORIZED")
_TOO_BIG: Final = re.compile(r"(message|body) too big \d+ > (\d+)")

# These will not go away by themselves: publishers hear of them at once.
_LASTING: Final = (TlsError, NegotiationError, AuthError)


class Sender:
    """One way to nsqd: to an address, or to the next one whenever a connection fails."""

    def __init__(
        self,
        queue: PublishQueue,
        settings: Settings,
        stats: ProducerStats,
        observer: Observer,
        on_down: Callable[[], None] | None,
        *,
        window_count: int,
        retry_count: int | None,
        context: ssl.SSLContext | None,
    ) -> None:
        """Prepare; `run` connects.

        Args:
            on_down: called when a connection was lost, or could not be made.
            window_count: commands sent ahead of their answers.
            retry_count: how often a batch is sent again; None for as often as its time allows.
        """
        self.addresses: Sequence[Address] = ()
        # Whether to end with the present connection, as no nsqlookupd knows this nsqd any more.
        self.is_gone = False
        # Why there is no connection; None while there is one.
        self.last_error: NsqError | None = None
        self._queue = queue
        self._settings = settings
        self._stats = stats
        self._observer = observer
        self._on_down = on_down
        self._window_count = window_count
        self._retry_count = retry_count
        self._context = context
        self._turn = 0
        self._connection: Connection | None = None
        self._nsqd = ""  # the address of the last connection
        self._unanswered: deque[Batch] = deque()
        self._pauses = Pauses()
        # Set when the connection has ended; there is one whenever `_connection` is not None.
        self._lost: asyncio.Future[str] | None = None
        # The failures in a row that will not go away, of as many addresses.
        self._lasting_count = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    @property
    def has_unanswered(self) -> bool:
        """Whether commands wait for their answers."""
        return bool(self._unanswered)

    @property
    def can_send(self) -> bool:
        """Whether another command may leave now."""
        connection = self._connection
        return (
            connection is not None
            and not connection.is_writing_paused
            and len(self._unanswered) < self._window_count
        )

    async def run(self) -> None:
        """Connect, send, and connect again, until cancelled or gone."""
        loop = asyncio.get_running_loop()
        while not self.is_gone:
            lived_s = 0.0
            if self.addresses:
                address = self.addresses[self._turn % len(self.addresses)]
                started_at = loop.time()
                try:
                    await self._serve(address)
                except (ConnectError, AuthError) as error:
                    self._note_failure(address, error)
                else:
                    lived_s = loop.time() - started_at
                self._turn += 1
                if self._on_down is not None:
                    self._on_down()
            await asyncio.sleep(self._pauses.next_s(lived_s))

    def send_waiting(self) -> None:
        """Send the waiting messages, as far as the window allows."""
        while self.can_send:
            batch = self._queue.take()
            if batch is None:
                return
            self._send(batch)

    def check_deadline(self, now: float, make_error: Callable[[Batch], Exception]) -> None:
        """Fail the batches whose time is over, and give up a connection without answers."""
        if not self._unanswered or self._unanswered[0].deadline > now:
            return
        expired = [batch for batch in self._unanswered if batch.deadline <= now]
        self._unanswered = deque(batch for batch in self._unanswered if batch.deadline > now)
        for batch in expired:
            self._queue.settle(batch, make_error(batch))
        self._abort("nsqd did not answer in time")

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()

    # Called by the connection.

    def messages_received(self, messages: list[RawMessage]) -> None:
        """Refuse them: this connection has not subscribed."""
        self._abort("messages without a subscription")

    def reply_received(self, data: bytes, *, is_error: bool) -> None:
        """Take the answer to the oldest command."""
        if not self._unanswered or not (is_error or data == OK):
            self._abort("an answer that was not asked for")
            return
        batch = self._unanswered.popleft()
        if is_error:
            self._take_error(batch, data.decode("utf-8", "replace"))
            return
        self._pauses.reset()
        self._stats.published += len(batch.bodies)
        if self._nsqd not in self._stats.nodes:
            self._stats.nodes |= {self._nsqd}
        self._queue.settle(batch)
        if self._queue.has_waiting:
            self.send_waiting()

    def writing_resumed(self) -> None:
        """Go on."""
        self.send_waiting()

    def connection_lost(self, reason: str) -> None:
        """Put the unanswered batches back, for the next connection."""
        self._connection = None
        unanswered = list(self._unanswered)
        self._unanswered.clear()
        if unanswered:
            unanswered[0].lost_count += 1
            self._return(unanswered, reason)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    async def _serve(self, address: Address) -> None:
        """Connect, and stay until the connection ends."""
        self._lost = asyncio.get_running_loop().create_future()
        connection = await connect(address, self._settings, self, self._context)
        if connection.is_lost:
            raise ConnectError(f"{address}: {self._lost.result()}")
        self._connection = connection
        self._nsqd = str(address)
        self.last_error = None
        self._lasting_count = 0
        self._stats.connects += 1
        self._observer.connected(str(address))
        self.send_waiting()
        reason = await self._lost
        self.last_error = ConnectError(f"{address}: {reason}")
        self._observer.disconnected(str(address), reason)
        _logger.info("connection lost nsqd=%s reason=%s", address, reason)

    def _note_failure(self, address: Address, error: NsqError) -> None:
        self.last_error = error
        self._observer.connect_failed(str(address), error)
        _logger.warning("cannot connect nsqd=%s error=%s", address, error)
        self._lasting_count = self._lasting_count + 1 if isinstance(error, _LASTING) else 0
        if self._lasting_count >= len(self.addresses):
            self._queue.fail_all(lambda _batch: error)

    def _abort(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort(reason)

    def _send(self, batch: Batch) -> None:
        assert self._connection is not None
        if batch.sent_count:
            self._stats.resent += len(batch.bodies)
        batch.sent_count += 1
        self._unanswered.append(batch)
        self._connection.write(batch.encode())

    def _return(self, batches: list[Batch], reason: str) -> None:
        """Put batches back into the queue, but for those that have been sent too often."""
        kept = []
        for batch in batches:
            is_spent = self._retry_count is not None and batch.sent_count > self._retry_count
            is_suspect = batch.lost_count >= _MAX_LOST_COUNT
            if is_suspect and not is_spent and len(batch.futures) > 1:
                kept += batch.split()
            elif is_suspect or is_spent:
                self._queue.settle(batch, ConnectionLostError(reason))
            else:
                kept.append(batch)
        self._queue.put_back(kept)

    def _take_error(self, batch: Batch, text: str) -> None:
        """Handle a refusal. nsqd closes the connection and executes nothing behind the command."""
        behind = list(self._unanswered)
        self._unanswered.clear()
        for each in behind:
            each.sent_count -= 1  # It was not executed: sending it again doubles nothing.
        self._abort(text)
        self._stats.refused += 1
        again = self._find_retry(batch, text)
        self._queue.put_back([*again, *behind])

    def _find_retry(self, batch: Batch, text: str) -> list[Batch]:
        """Settle a refused batch; return the part of it that is to be sent again."""
        batch.sent_count -= 1
        batch.lost_count = 0
        too_big = _TOO_BIG.search(text)
        if too_big is not None:
            return self._retry_smaller(batch, text, int(too_big[2]), is_body=too_big[1] == "body")
        if text.startswith(_TEMPORARY):
            batch.refusal = text
            # A refusal is no delivery, so `sent_count` cannot count these retries.
            batch.refusal_count += 1
            if self._retry_count is None or batch.refusal_count <= self._retry_count:
                self._observer.refused(batch.topic, text)
                return [batch]
            is_unsent = not batch.sent_count
            refusal = RefusedError(text, is_certainly_not_published=is_unsent)
            self._queue.settle(batch, refusal)
        elif text.startswith(_AUTH):
            self._queue.settle(batch, AuthError(text))
        elif text.endswith("(TLS required)"):
            self._queue.settle(batch, NegotiationError(text))
        else:
            self._queue.settle(batch, PublishError(text, is_certainly_not_published=True))
        return []

    def _retry_smaller(self, batch: Batch, text: str, limit: int, *, is_body: bool) -> list[Batch]:
        """Learn nsqd's limit; return the messages that fit it."""
        bounds = self._queue.bounds
        if is_body and len(batch.bodies) > 1 and not batch.is_whole:
            bounds.max_batch_bytes = min(bounds.max_batch_bytes, max(limit // 2, 1))
            assert mpub_bytes(batch.body_bytes, len(batch.bodies)) > limit
            return batch.split()
        if not is_body:
            bounds.max_message_bytes = min(bounds.max_message_bytes, limit)
            if not batch.is_whole:
                large = batch.split_off_larger(limit)
                self._queue.settle(large, MessageTooLargeError(text))
                return [batch] if batch.bodies else []
        self._queue.settle(batch, MessageTooLargeError(text))
        return []
