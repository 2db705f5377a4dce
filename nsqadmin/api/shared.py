"""Shared by all viewers: questions asked upstream once, documents made once for each round."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

from nsqadmin.api.replies import Document
from nsqd.runtime.slices import join_slices

KEEP_S: Final = 1.0
MAX_KEPT: Final = 256
# Polls of viewers who were away for different times.
MAX_DOCUMENTS: Final = 32

_T = TypeVar("_T")


class RoundDocuments:
    """Documents of the last round of the collector, encoded and compressed once for all."""

    def __init__(self) -> None:
        self._documents: dict[Hashable, asyncio.Task[Document]] = {}
        self._seq = -1

    async def get(self, seq: int, name: Hashable, parts: Callable[[], Iterable[str]]) -> Document:
        """Return a document of a round, put together in slices when it is first asked for."""
        if self._seq != seq or len(self._documents) >= MAX_DOCUMENTS:
            self._documents.clear()
            self._seq = seq
        task = self._documents.get(name)
        if task is None:
            task = self._documents[name] = asyncio.ensure_future(_make_document(parts()))
        return await asyncio.shield(task)


class SharedQuestions:
    """Answers under way and those of the last second, by question."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def ask(self, question: Hashable, find: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer to a question; others who ask it meanwhile get the same."""
        now = time.monotonic()
        known = self._answers.get(question)
        if known is None or (known[1].done() and now >= known[0]):
            self._forget(now)
            task: asyncio.Task[Any] = asyncio.ensure_future(_run(find))
            task.add_done_callback(lambda task: self._note_end(question, task))
            known = self._answers[question] = (now + KEEP_S, task)
        # One of them may hang up without taking the answer from the others.
        answer: _T = await asyncio.shield(known[1])
        return answer

    def _note_end(self, question: Hashable, task: "asyncio.Task[Any]") -> None:
        known = self._answers.get(question)
        if known is not None and known[1] is task:
            if task.cancelled() or task.exception() is not None:
                del self._answers[question]
            else:
                self._answers[question] = (time.monotonic() + KEEP_S, task)

    def _forget(self, now: float) -> None:
        over = [key for key, (at, task) in self._answers.items() if task.done() and now >= at]
        for key in over:
            del self._answers[key]
        if len(self._answers) >= MAX_KEPT:
            for key in [key for key, (_, task) in self._answers.items() if task.done()]:
                del self._answers[key]


async def _make_document(parts: Iterable[str]) -> Document:
    return Document(await join_slices(parts))


async def _run(find: Callable[[], Awaitable[_T]]) -> _T:
    return await find()
