"""`python -m lookupd`, installed as `nsqlookupd`: argv in, exit code out."""

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence

import uvloop

from lookupd.daemon import Daemon
from lookupd.options import PROGRAM, Options, check_options
from nsqd.config import logs
from nsqd.config.flags import CommandLineExit, ConfigError, OptionsError, version_text
from nsqd.runtime.listen import ListenError, raise_open_files_limit
from nsqd.runtime.systemd import ServiceManager


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until it is told to stop; return the exit code."""
    try:
        options = Options.from_argv(sys.argv[1:] if argv is None else argv)
        if options.version:
            print(version_text(PROGRAM))
            return 0
        check_options(options)
    except CommandLineExit as error:
        print(error.text, file=sys.stderr)
        return error.status
    except ConfigError as error:
        logs.fatal_line(PROGRAM, str(error), level=error.level)
        return 1
    except OptionsError as error:
        logs.fatal_line(PROGRAM, f"failed to instantiate {PROGRAM} - {error}")
        return 1
    logs.configure(options.log_prefix, options.log_level, options.log_format)
    raise_open_files_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options))
    except ListenError as error:
        logs.fatal_line(PROGRAM, f"failed to instantiate {PROGRAM} - {error}")
        return 1


async def _serve(options: Options) -> int:
    daemon = Daemon(options)
    loop = asyncio.get_running_loop()
    # A closed terminal sends SIGHUP; the Go daemon dies of it without a word.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(signal.SIGQUIT, _dump_and_exit)
    service_manager = ServiceManager(loop)
    try:
        await daemon.start()
        service_manager.ready(f"Serving on TCP port {daemon.tcp_port}, HTTP {daemon.http_port}")
        exit_code = await daemon.wait()
        service_manager.stopping("Stopping")
    finally:
        await daemon.close()
    return exit_code


def _dump_and_exit() -> None:
    """End at once and say where we were, as a Go program does on SIGQUIT."""
    faulthandler.dump_traceback(all_threads=True)
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main())
