"""The settings of consumers, from the flags of the commands that have them."""

from __future__ import annotations

import argparse
from typing import Any

from nsqd.cli.output import CliError, ExitCode
from nsqd.cli.target import Target


def consumer_options(
    options: argparse.Namespace, target: Target, **defaults: Any
) -> dict[str, Any]:
    """Return the keyword arguments of a consumer: the defaults, then flags, then --opt.

    Raises:
        CliError: flags contradict each other, or a key of --opt is unknown.
    """
    if options.max_attempts and not options.dead_letter:
        raise CliError("--max-attempts needs --dead-letter TOPIC", ExitCode.USAGE)
    flags = {
        "msg_timeout": options.msg_timeout,
        "sample_rate": options.sample,
        "max_attempts": options.max_attempts,
        "dead_letter_topic": options.dead_letter,
        "compression": "snappy" if options.snappy else "deflate" if options.deflate else None,
    }
    set_flags = {name: value for name, value in flags.items() if value}
    given = _read_go_nsq(options.opt) if options.opt else {}
    return {**target.connection_options(), **defaults, **set_flags, **given}


def _read_go_nsq(given: list[str]) -> dict[str, Any]:
    # Imported here: rarely given, and the flags of the daemons come with it.
    from nsqd.cli.go.options import UsageError, log_give_up, read_go_nsq

    pairs = [text.replace("=", ",", 1) for text in given]
    try:
        return read_go_nsq(pairs, "opt").consumer_options(on_give_up=log_give_up)
    except UsageError as error:
        raise CliError(str(error), ExitCode.USAGE) from error
