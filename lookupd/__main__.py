"""`python -m lookupd`, installed as `nsqlookupd`: argv in, exit code out."""

import sys
from collections.abc import Callable, Sequence

from lookupd.options import COMMAND, PROGRAM, Options, check_options


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until it is told to stop; return the exit code."""
    return COMMAND.main(argv, _run)


def _run(options: Options, read_options: Callable[[], Options]) -> int:
    # Imported late: a wrong flag or --version should not wait for the whole daemon to load.
    import uvloop

    from lookupd.daemon import Daemon
    from nsqd.runtime.process import run_daemon

    def make_daemon() -> Daemon:
        check_options(options)
        return Daemon(options, read_options)

    return run_daemon(PROGRAM, make_daemon, loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    sys.exit(main())
