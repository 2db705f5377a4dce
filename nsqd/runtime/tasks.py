"""Tasks whose failure somebody hears of: the loop's exception handler, which stops the daemon."""

import asyncio
from collections.abc import Coroutine


def start_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """Start a task; what ends it is treated as what escapes a callback."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report_failure)
    return task


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        message = f"task {task.get_name()} failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error})
