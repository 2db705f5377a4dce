"""`python -m nsqd`, installed as `nsqd`: argv in, exit code out."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from nsqd.config.options import COMMAND, Options

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it is told to stop; return the exit code."""
    return COMMAND.main(argv, _run)


def _run(options: Options, read_options: Callable[[], Options]) -> int:
    # Imported late: a wrong flag or --version should not wait for the whole daemon to load.
    from nsqd.daemon import run

    return run(options, loop_factory=_find_loop_factory(), read_options=read_options)


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is installed, None for asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        logger.warning("uvloop is not installed, using the slower event loop of asyncio")
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
