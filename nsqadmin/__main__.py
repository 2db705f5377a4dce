"""`python -m nsqadmin`, installed as `nsqadmin`: argv in, exit code out."""

import asyncio
import functools
import logging
import sys
from collections.abc import Sequence

import uvloop

from nsqadmin.daemon import Daemon, ReadOptions
from nsqadmin.options import PROGRAM, Options, check_options
from nsqd.config import logs
from nsqd.config.flags import CommandLineExit, ConfigError, OptionsError, version_text
from nsqd.runtime.listen import ListenError, raise_open_files_limit
from nsqd.runtime.signals import handle_signals, ignore_signals
from nsqd.runtime.systemd import ServiceManager

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin until it is told to stop; return the exit code."""
    read_options = functools.partial(Options.from_argv, sys.argv[1:] if argv is None else argv)
    warnings: list[str] = []
    try:
        options = read_options(warnings)
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
    for text in warnings:
        logger.warning("%s", text)
    raise_open_files_limit()
    ignore_signals()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options, read_options))
    except (ListenError, OptionsError) as error:
        logs.fatal_line(PROGRAM, f"failed to instantiate {PROGRAM} - {error}")
        return 1


async def _serve(options: Options, read_options: ReadOptions) -> int:
    daemon = Daemon(options, read_options)
    loop = asyncio.get_running_loop()
    handle_signals(loop, stop=daemon.stop, reload=daemon.reload)
    service_manager = ServiceManager(loop)
    try:
        await daemon.start()
        service_manager.ready(f"Serving on HTTP port {daemon.http_port}")
        exit_code = await daemon.wait()
        service_manager.stopping("Stopping")
    finally:
        await daemon.close()
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
