"""The nsqd command: argv to Options, logging, then the daemon; its result is the exit code.

Exit codes: 0 for help, --version and a clean stop; 1 when nsqd cannot start; 2 for a wrong flag,
and after a signal such as SIGQUIT.
"""

import asyncio
import functools
import logging
import sys
from collections.abc import Callable, Sequence

from nsqd.config import logs
from nsqd.config.flags import CommandLineExit, ConfigError, version_text
from nsqd.config.options import Options

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it stops, and return its exit code."""
    read_options = functools.partial(Options.from_argv, sys.argv[1:] if argv is None else argv)
    warnings: list[str] = []
    try:
        options = read_options(warnings)
    except CommandLineExit as early:
        print(early.text, file=sys.stderr)
        return early.status
    except ConfigError as error:
        logs.fatal_line("nsqd", str(error), level=error.level)
        return 1
    if options.version:
        print(version_text("nsqd"))
        return 0
    logs.configure(options.log_prefix, options.log_level, options.log_format)
    for text in warnings:
        logger.warning("%s", text)
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
