"""Processes that wait for each other, start together, and report or are ended.

The group owns its processes: leaving the `with` block, however it is left, ends them all.
Workers are forked, so a job may be any callable; nothing but its result is pickled.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Final, Self, cast

from bench.daemon_process import DaemonError
from bench.load import LoadResult, Start
from bench.wire import LoadError

Job = Callable[[Start], LoadResult]

READY_TIMEOUT_S: Final = 60.0
# A worker that is ready waits for those that still fill their queues.
GO_TIMEOUT_S: Final = 240.0
JOIN_TIMEOUT_S: Final = 5.0

_READY: Final = "ready"
_GO: Final = "go"


class WorkerGroup:
    """Jobs in processes of their own: `wait_ready`, then `go`, then `results`."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        context = multiprocessing.get_context("fork")
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        for job in jobs:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(job, theirs), daemon=True)
            self._processes.append(process)
            self._pipes.append(ours)

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(JOIN_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join(JOIN_TIMEOUT_S)
        for pipe in self._pipes:
            pipe.close()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when every job has called its `start`.

        Raises:
            LoadError: one failed before, or did not get there in time.
        """
        answers = self._answers(timeout_s)
        if any(answer != _READY for answer in answers):
            raise LoadError("a worker ended before it started")

    def go(self) -> None:
        """Let all jobs begin."""
        for pipe in self._pipes:
            pipe.send(_GO)

    def results(self, timeout_s: float) -> list[LoadResult]:
        """What each job returned, in the order they were given.

        Raises:
            LoadError: one of them failed, or was not done in time.
        """
        results = self._answers(timeout_s)
        return [result for result in results if isinstance(result, LoadResult)]

    def _answers(self, timeout_s: float) -> list[object]:
        """One answer from each worker; the first failure wins, as the others only follow it."""
        deadline = time.monotonic() + timeout_s
        answers: dict[int, object] = {}
        # A dead worker is known by its sentinel: its siblings keep its end of the pipe open.
        waiting = dict(enumerate(zip(self._pipes, self._processes, strict=True)))
        while waiting:
            objects = [
                item for pipe, process in waiting.values() for item in (pipe, process.sentinel)
            ]
            if not wait(objects, max(0.0, deadline - time.monotonic())):
                raise LoadError(f"{len(waiting)} workers not done after {timeout_s:.0f} s")
            for index, (pipe, process) in list(waiting.items()):
                if pipe.poll():
                    answers[index] = _answer(pipe)
                    del waiting[index]
                elif not process.is_alive():
                    raise LoadError(f"a worker died with status {process.exitcode}")
        return [answers[index] for index in range(len(answers))]


def _answer(pipe: Connection) -> object:
    try:
        answer = pipe.recv()
    except EOFError as error:
        raise LoadError("a worker died; its error is above") from error
    if isinstance(answer, LoadError):
        raise answer
    return cast(object, answer)


def _work(job: Job, pipe: Connection) -> None:
    """The body of a worker process."""
    # Ctrl-C reaches the whole terminal; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def start() -> None:
        pipe.send(_READY)
        if not pipe.poll(GO_TIMEOUT_S):
            raise LoadError("was never told to start")
        pipe.recv()

    try:
        pipe.send(job(start))
    except (LoadError, DaemonError, OSError) as error:
        pipe.send(LoadError(str(error)))
