"""Handlers: call the program's function for each message, and answer by its outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeAlias, cast

from nsqd.client.consume.inbox import Inbox
from nsqd.client.consume.message import Message, Requeue

_logger = logging.getLogger("nsqd.client")

AsyncHandler: TypeAlias = Callable[[Message], Awaitable[None]]
Handler: TypeAlias = AsyncHandler | Callable[[Message], None]


def is_async(handler: Handler) -> bool:
    """Say whether a handler is a coroutine function, or an object that is called as one."""
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - asks what it is, not whether
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def in_threads(handler: Handler, executor: Executor) -> AsyncHandler:
    """Return a coroutine function that calls a plain function in a thread.

    The loop goes on meanwhile, so that heartbeats are answered and messages touched.
    """
    loop = asyncio.get_running_loop()

    async def call(message: Message) -> None:
        await loop.run_in_executor(executor, handler, message)

    return call


async def work(inbox: Inbox, handler: Handler) -> None:
    """Handle messages, one at a time, until the inbox is closed.

    Raises:
        NsqError: no nsqd lets the consumer in.
    """
    handle = cast(AsyncHandler, handler)
    while True:
        message = inbox.take_now() or await inbox.take()
        if message is None:
            return
        try:
            await handle(message)
        except asyncio.CancelledError as error:
            message.settle(error)
            raise
        except Exception as error:
            if not isinstance(error, Requeue):
                _logger.exception("handler failed id=%s", message.id.decode("ascii", "replace"))
            message.settle(error)
        else:
            message.settle(None)
