"""CauseBook: the causes of the dead letters of all topics; none of them costs anything before."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Final

from diskqueue import layout
from nsqd.broker.limits.causes import Cause, CauseLog
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.scheduler import Scheduler, Timer
from nsqd.broker.topic import Topic

logger = logging.getLogger(__name__)

# How often topics with causes are asked whether they still have dead letters.
LOOK_S: Final = 15.0


class CauseBook:
    """Notes the causes of dead letters, makes them durable, and forgets them with the letters."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        topics: Mapping[str, Topic],
        scheduler: Scheduler,
        sync_timeout_s: float,
    ) -> None:
        """Args: topics: the broker's own mapping, which changes."""
        self._directory = os.fspath(directory)
        self._topics = topics
        self._scheduler = scheduler
        self._sync_timeout_s = sync_timeout_s
        self._logs: dict[str, CauseLog] = {}
        # Topics whose entries have to be synced, and receipts that wait for that.
        self._unsynced: set[str] = set()
        self._waiting: list[Receipt] = []
        self._syncing: list[CauseLog] | None = None  # None while no sync runs
        self._sync_timer: Timer | None = None
        self._look_timer: Timer | None = None
        self._has_failed = False
        self._is_closed = False

    @property
    def topic_names(self) -> list[str]:
        """The topics that may have dead letters."""
        return list(self._logs)

    def open(self, name: str) -> None:
        """Have the causes of a topic, which has files of them."""
        self._logs[name] = CauseLog(self._directory, name)
        self._look_later()

    def find(self, topic: Topic, ids: Iterable[bytes]) -> dict[bytes, Cause]:
        """Return the causes that are known of messages of a topic, by id."""
        log = self._logs.get(topic.name)
        if log is None:
            return {}
        try:
            return log.find(ids)
        except OSError as error:
            logger.warning("TOPIC(%s): failed to read causes - %s", topic.name, error)
            return {}

    def begin(self, topic: Topic, causes: Sequence[Cause]) -> "CauseNote":
        """Begin to note causes, whose ids are not known yet."""
        if topic.is_ephemeral:
            return CauseNote(None, causes, _ignore)  # it leaves no files
        log = self._logs.get(topic.name)
        if log is None:
            log = self._logs[topic.name] = CauseLog(self._directory, topic.name)
        return CauseNote(log, causes, partial(self._end_add, topic.name))

    def sync_with(self, receipt: Receipt | None) -> Receipt | None:
        """Return a receipt that is done when another is and all causes are durable.

        Without another, the dead letters are in memory and their causes are synced some time later.
        """
        if not self._unsynced and self._syncing is None:
            return receipt
        if receipt is None:
            if self._sync_timer is None and self._syncing is None:
                when = self._scheduler.time() + self._sync_timeout_s
                self._sync_timer = self._scheduler.call_at(when, self._sync)
            return None
        both = Receipt(1)
        both.include(receipt)
        self._waiting.append(both)
        self._sync()
        return both

    def remove(self, name: str) -> None:
        """Forget the causes of a topic that is deleted, or has no dead letter any more."""
        log = self._logs.pop(name, None)
        self._unsynced.discard(name)
        if log is not None:
            try:
                held = log.remove()
            except OSError as error:
                logger.warning("TOPIC(%s): failed to remove causes - %s", name, error)
                return
            if held:
                self._scheduler.run_in_thread(partial(_close_all, held), _ignore)

    def close(self) -> list[Callable[[], None]]:
        """Start nothing any more; return what has to be run to make the causes durable."""
        for timer in (self._sync_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._sync_timer = self._look_timer = None
        self._is_closed = True
        logs = [*(self._syncing or ()), *(self._logs[name] for name in self._unsynced)]
        works: list[Callable[[], None]] = [log.sync for log in logs]
        return [*works, partial(layout.fsync_directory, self._directory)] if works else []

    def _end_add(self, name: str, error: OSError | None) -> None:
        if error is None:
            self._unsynced.add(name)
            self._look_later()
        elif not self._has_failed:
            logger.warning("TOPIC(%s): failed to note causes of dead letters - %s", name, error)
        self._has_failed = error is not None

    # --- durable

    def _sync(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        if self._syncing is not None:
            return  # and again at its end
        logs = self._syncing = [self._logs[name] for name in self._unsynced]
        waiting, self._waiting = self._waiting, []
        self._unsynced.clear()

        def sync() -> None:
            for log in logs:
                log.sync()
            layout.fsync_directory(self._directory)

        self._scheduler.run_in_thread(sync, partial(self._end_sync, waiting))

    def _end_sync(self, waiting: Sequence[Receipt], error: OSError | None) -> None:
        self._syncing = None
        if error is not None:
            # The dead letters are not held up: without a cause they are dead letters, too.
            logger.warning("NSQ: failed to sync causes of dead letters - %s", error)
        for receipt in waiting:
            receipt.settle(None)
        if (self._unsynced or self._waiting) and not self._is_closed:
            self._sync()

    # --- forgotten

    def _look_later(self) -> None:
        if self._look_timer is None:
            when = self._scheduler.time() + LOOK_S
            self._look_timer = self._scheduler.call_at(when, self._look)

    def _look(self) -> None:
        """Forget the causes of topics that have no message any more, in slices."""
        self._look_timer = None
        names = iter(list(self._logs))

        def look_at_some() -> bool:
            end = self._scheduler.slice_end()
            for name in () if self._is_closed else names:
                topic = self._topics.get(name)
                if topic is None or not holds_messages(topic):
                    self.remove(name)
                if perf_counter() >= end:
                    return True
            if self._logs and not self._is_closed:
                self._look_later()
            return False

        if look_at_some():
            self._scheduler.share(look_at_some)


class CauseNote:
    """The causes of one publish of dead letters."""

    __slots__ = ("_causes", "_is_noted", "_log", "_on_end")

    def __init__(
        self,
        log: CauseLog | None,
        causes: Sequence[Cause],
        on_end: Callable[[OSError | None], object],
    ) -> None:
        self._log = log
        self._causes = causes
        self._on_end = on_end
        self._is_noted = False

    def add(self, ids: Sequence[bytes]) -> None:
        """Note the causes under the ids that the dead letters will have.

        A disk that refuses it does not keep a message from becoming a dead letter.
        """
        if self._log is None:
            return
        try:
            self._log.add(ids, self._causes)
        except OSError as error:
            self._on_end(error)
        else:
            self._is_noted = True
            self._on_end(None)

    def undo(self) -> None:
        """Forget them: the dead letters were refused, and will have other ids."""
        if self._is_noted and self._log is not None:
            try:
                self._log.undo_add(len(self._causes))
            except OSError as error:
                self._on_end(error)


def holds_messages(topic: Topic) -> bool:
    """Return whether a topic or one of its channels has a message anywhere."""
    if topic.queue.depth or topic.hand_over.line_count:
        return True
    return any(
        channel.queue.depth or len(channel.deferred) or channel.consumers.in_flight_count
        for channel in topic.channels.values()
    )


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _ignore(_error: OSError | None) -> None:
    """Have nothing to do at the end."""
