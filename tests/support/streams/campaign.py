"""Campaign: a query and its nsqd, killed at random while topics are deleted and made anew.

Every body is published once. At the end each body of the sink was published, none is there twice,
and those that are missing were in a topic that was deleted or emptied, after which a failure or a
warning of the query has named its queue.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.support.daemon_process import REPOSITORY, DaemonProcess
from tests.support.waiting import wait_until

TOPICS = ("a", "b", "c")
FLAGS = (
    "--mem-queue-size=0",
    "--max-bytes-per-file=20000",
    "--sync-timeout=50ms",
    "--retain-bytes=50000000",
)
_MAX_BATCH = 60
# Until the pipe of a driver that was killed has been read to its end.
_PIPE_PATIENCE_S = 5.0
# Below those that Linux takes for outgoing connections.
_LASTING_PORTS = (26_000, 27_000)


@dataclass(slots=True)
class Book:
    """What was published to one topic, and what was done to the topic."""

    acknowledged: dict[str, float] = field(default_factory=dict)
    # Published when nsqd was killed: they are there or not.
    unsure: set[str] = field(default_factory=set)
    # When messages were removed.
    removals: list[float] = field(default_factory=list)
    # A deletion was not acknowledged: the messages may have come back as those of another queue.
    is_deletion_unsure: bool = False


class BrokenPromiseError(AssertionError):
    """Raised when rows are missing, or there twice, without a word of the query."""


class Campaign:
    """One query over one nsqd, until `verify`; a context that ends both."""

    def __init__(
        self, directory: Path, *, kind: str, origin: str, seed: int, say: Callable[[str], object]
    ) -> None:
        """Args: kind: of the driver, `spark` or `bare`; origin: backlog or archive."""
        self._directory = directory
        self._kind = kind
        self._origin = origin
        self._chance = random.Random(seed)
        self._say = say
        self._node = DaemonProcess(directory / "nsqd", *FLAGS)
        self._node.tcp_port, self._node.http_port = find_lasting_ports(2)
        self._node.keeps_ports = True
        self._books = {topic: Book() for topic in TOPICS}
        # Held while a topic changes: a publish is before or after that.
        self._order = threading.Lock()
        self._is_over = threading.Event()
        self._publisher = threading.Thread(target=self._publish_on, daemon=True)
        self._failure: BaseException | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._outputs: list[Path] = []
        self._errors: list[StampedLines] = []
        self.kill_count: Counter[str] = Counter()

    def __enter__(self) -> "Campaign":
        self._node.start()
        self._publisher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._publisher.join()
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
        self._node.kill()

    # --- what the nsqd lives through

    def _publish_on(self) -> None:
        chance = random.Random(self._chance.random())
        number = 0
        try:
            while not self._is_over.is_set():
                topic = chance.choice(TOPICS)
                count = chance.randint(1, _MAX_BATCH)
                bodies = [f"{topic}-{number + index:07d}" for index in range(count)]
                number += count
                with self._order:
                    self._publish(topic, bodies)
                time.sleep(chance.uniform(0, 0.05))
        except BaseException as error:  # noqa: BLE001 - told by verify, in the other thread
            self._failure = error

    def _publish(self, topic: str, bodies: list[str]) -> None:
        book = self._books[topic]
        try:
            reply = self._node.fetch("POST", f"/mpub?topic={topic}", "\n".join(bodies).encode())
        except OSError:
            book.unsure.update(bodies)
            return
        if reply.status == 200:
            book.acknowledged.update(dict.fromkeys(bodies, time.monotonic()))
        else:
            book.unsure.update(bodies)

    def remove_messages(self) -> None:
        """Delete or empty a topic; often the next publish makes it anew at once."""
        topic = self._chance.choice(TOPICS)
        verb = self._chance.choice(["delete", "delete", "empty"])
        with self._order:
            book = self._books[topic]
            book.removals.append(time.monotonic())
            try:
                status = self._node.fetch("POST", f"/topic/{verb}?topic={topic}").status
            except OSError:
                status = 0
            book.removals.append(time.monotonic())
            if verb == "delete" and status not in (200, 404):
                book.is_deletion_unsure = True

    def kill_node(self) -> None:
        """Kill nsqd and start it again; sometimes it is stopped instead."""
        if self._chance.random() < 0.15:
            self._node.stop()
            self._say("nsqd stopped")
        else:
            self._node.kill()
            self.kill_count["nsqd"] += 1
        time.sleep(self._chance.uniform(0, 0.3))
        self._node.start()

    # --- the query

    def start_driver(self, *, is_last: bool = False) -> None:
        """Start the query, over HTTP or in the directory, as it comes."""
        assert self._driver is None
        is_remote = self._chance.random() < 0.5
        options = {
            "topic": ",".join(TOPICS),
            "channel": "",
            "from": self._origin,
            "maxRowsPerTrigger": str(self._chance.choice([100, 1000, 100_000])),
            "lookInterval": "0",
        }
        if is_remote:
            options |= {"nsqd": self._node.http_address, "retries": "4"}
        else:
            options["path"] = str(self._node.data_path)
        given = {
            "kind": self._kind,
            "directory": str(self._directory),
            "options": options,
            "is_last": is_last,
        }
        output = self._directory / f"driver-{len(self._outputs)}"
        self._outputs.append(output)
        with output.open("wb") as file:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.support.streams.driver", json.dumps(given)],
                cwd=REPOSITORY,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.PIPE,
                # With the JVM and its workers, which have to die with it.
                start_new_session=True,
            )
        assert self._driver.stderr is not None
        self._errors.append(StampedLines(self._driver.stderr, output.with_suffix(".errors")))

    def wait_for_driver(self, word: str) -> None:
        """Wait until the driver has told something, as `started`."""
        wait_until(lambda: self._has_told(word))

    def _has_told(self, word: str) -> bool:
        assert self._driver is not None
        if self._driver.poll() not in (None, 0):
            raise BrokenPromiseError(f"the driver failed: {self._read_errors()[-3000:]}")
        return any(word in line for line in _read_lines(self._outputs[-1]))

    def _read_errors(self) -> str:
        return "\n".join(text for _, text in self._errors[-1].lines())

    def kill_driver(self) -> None:
        """Kill the driver with everything that it has started; it must be running.

        Raises:
            BrokenPromiseError: it has ended by itself.
        """
        assert self._driver is not None
        if self._driver.poll() is not None:
            raise BrokenPromiseError(f"the driver failed: {self._read_errors()[-3000:]}")
        os.killpg(self._driver.pid, signal.SIGKILL)
        self.kill_count["driver"] += 1
        self._driver.wait()
        self._driver = None

    # --- the verdict

    def finish(self) -> None:
        """Publish to each topic once more, and let the query read everything.

        Raises:
            BrokenPromiseError: rows are missing or there twice, and nothing was said of it.
        """
        self._is_over.set()
        self._publisher.join()
        if self._failure is not None:
            raise self._failure
        for topic in TOPICS:
            self._publish(topic, [f"{topic}-last"])
        wait_until(self._is_synced)
        self.start_driver(is_last=True)
        self.wait_for_driver("rows")
        assert self._driver is not None
        self._driver.wait()
        self._driver = None
        self._verify(Counter(json.loads((self._directory / "rows.json").read_text())))

    def _is_synced(self) -> bool:
        manifest = json.loads(self._node.request("GET", f"/segments?from={self._source}"))
        return all(queue["synced"] == queue["write"] for queue in manifest["queues"])

    @property
    def _source(self) -> str:
        return "archive" if self._origin == "archive" else "queue"

    def _verify(self, rows: Counter[str]) -> None:
        wrongs = []
        missing_count = 0
        reports = self._reports()
        for topic, book in self._books.items():
            mine = {body: count for body, count in rows.items() if body.startswith(f"{topic}-")}
            unknown = mine.keys() - book.acknowledged.keys() - book.unsure
            twice = [body for body, count in mine.items() if count > 1]
            missing = book.acknowledged.keys() - mine.keys()
            missing_count += len(missing)
            if unknown:
                wrongs.append(f"{topic}: {len(unknown)} rows that nobody has published")
            if twice and not book.is_deletion_unsure:
                wrongs.append(f"{topic}: {len(twice)} rows are there twice, as {sorted(twice)[0]}")
            told = _find_last_word(topic, reports)
            unexplained = [body for body in sorted(missing) if not _is_explained(body, book, told)]
            if unexplained:
                wrongs.append(f"{topic}: {len(unexplained)} are missing, as {unexplained[0]}")
        published = sum(len(book.acknowledged) for book in self._books.values())
        self._say(
            f"acknowledged={published} rows={rows.total()} reports={len(reports)}"
            f" lost with their topics, and told={missing_count} kills={dict(self.kill_count)}"
        )
        if wrongs:
            raise BrokenPromiseError("; ".join(wrongs))

    def _reports(self) -> list[tuple[float, str]]:
        """Return what the query has said of losses, with the times."""
        reports = []
        for output, errors in zip(self._outputs, self._errors, strict=True):
            for line in _read_lines(output):
                fact: dict[str, Any] = json.loads(line)
                if "report" in fact:
                    reports.append((fact["at"], fact["report"]))
            # Spark's workers warn on stderr, also in a lenient run that is killed before its end.
            reports += [(at, text) for at, text in errors.lines() if "queue" in text]
        return reports


def _find_last_word(topic: str, reports: list[tuple[float, str]]) -> float:
    """Return when the query has named a queue of the topic for the last time."""
    names = (f"queue {topic} ", f"/{topic}.diskqueue.")
    return max((at for at, text in reports if any(name in text for name in names)), default=0.0)


def _is_explained(body: str, book: Book, told: float) -> bool:
    """Tell whether a message was removed from its topic, and the query has said so since."""
    # The first of the pair of times around the first removal after the publish.
    removed = [when for when in book.removals if when >= book.acknowledged[body]]
    return bool(removed) and told >= removed[0]


class StampedLines:
    """The lines of a pipe, each with the time when it came; also kept in a file, for a reader."""

    def __init__(self, pipe: IO[bytes], path: Path) -> None:
        self._pipe = pipe
        self._path = path
        self._lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe, self._path.open("wb") as file:
            for line in self._pipe:
                self._lines.append((time.monotonic(), line.decode(errors="replace").rstrip("\n")))
                file.write(line)
                file.flush()

    def lines(self) -> list[tuple[float, str]]:
        """Return the lines that have come; all of them if the writers have ended."""
        self._thread.join(_PIPE_PATIENCE_S)
        return list(self._lines)


def find_lasting_ports(count: int) -> list[int]:
    """Find free ports that the kernel gives to no other socket while a daemon is away."""
    chance = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = chance.randrange(*_LASTING_PORTS)
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _read_lines(path: Path) -> list[str]:
    """Return the whole lines of a file; a process that was killed may have left half of one."""
    return path.read_text(errors="replace").split("\n")[:-1]
