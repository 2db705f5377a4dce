"""`nsq pub`: publish arguments, lines of stdin, or files; say exactly what was published.

`ExpressPub` publishes what is plain, `Job` everything else, and what the express could not.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from nsqd.cli import arguments
from nsqd.cli.messages.express_pub import ExpressPub
from nsqd.cli.messages.pieces import Splitter, Unframer
from nsqd.cli.messages.tally import Tally
from nsqd.cli.output import CliError, ExitCode, note
from nsqd.cli.target import Target, find_exit_code, find_target
from nsqd.client.errors import ConnectError, NsqError
from nsqd.protocol.names import is_valid_topic_name

EXAMPLES: Final = {
    "pub": """examples:
  nsq pub orders 'one message' 'another one'
  zcat orders.gz | nsq pub orders
  nsq pub orders -n 1000 '{"number": {n}, "id": "{uuid}"}' --rate 100"""
}
# Flags that only `Job` knows.
_SPECIAL: Final = (
    *("whole", "file", "framed", "envelope", "tee", "count", "skip", "defer", "rate", "to_all"),
    *("dry_run", "verbose"),
)


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq pub`."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("bodies", nargs="*", metavar="BODY", help="without any: lines of stdin")
    what = parser.add_argument_group("input")
    what.add_argument("--delimiter", type=arguments.delimiter, default=b"\n", metavar="TEXT",
                      help=r"between messages (\n); escapes are \n \t \0 \xNN")  # fmt: skip
    what.add_argument("-0", dest="is_null", action="store_true", help="NUL between messages")
    what.add_argument("--whole", action="store_true", help="all of stdin is one message")
    what.add_argument("-f", "--file", action="append", default=[], help="each file is one message")
    what.add_argument(
        "--framed", action="store_true", help="int32 size and bytes, as tail --framed"
    )
    what.add_argument("--envelope", action="store_true", help="lines of tail --json")
    what.add_argument("-n", "--count", type=arguments.positive, metavar="N",
                      help="N messages of BODY, with {n}, {now} and {uuid} filled in")  # fmt: skip
    what.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N")
    sending = parser.add_argument_group("sending")
    sending.add_argument("--defer", type=arguments.duration, default=0.0, metavar="TIME",
                         help="deliver that much later")  # fmt: skip
    sending.add_argument("--rate", type=float, default=0.0, metavar="N", help="messages a second")
    sending.add_argument("--batch", type=arguments.positive, default=1000, metavar="N",
                         help="messages in a command (1000)")  # fmt: skip
    sending.add_argument("--batch-bytes", type=arguments.size, default=1 << 20, metavar="SIZE",
                         help="the same in bytes (1m)")  # fmt: skip
    sending.add_argument("--window", type=arguments.positive, default=4, metavar="N",
                         help="commands ahead of their answers")  # fmt: skip
    sending.add_argument("--retries", type=int, default=5, metavar="N",
                         help="after a lost connection or a refusal for now (5)")  # fmt: skip
    sending.add_argument("--to-all", action="store_true", help="every message to every nsqd")
    sending.add_argument("--tee", action="store_true", help="copy the messages to stdout")
    sending.add_argument("--dry-run", action="store_true", help="count, and publish nothing")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq pub`.

    Raises:
        CliError: not everything was published.
    """
    target = find_target(options)
    if not is_valid_topic_name(options.topic):
        raise CliError(f"not the name of a topic: {options.topic!r}", ExitCode.USAGE)
    tally = Tally(options.topic)
    splitter = Splitter(b"\0" if options.is_null else options.delimiter)
    express = _make_express(options, target, tally, splitter)
    try:
        if express is None:
            _run_job(options, target, tally, Unframer() if options.framed else splitter)
        elif not express.run():
            _run_job(options, target, tally, splitter, express)
    except NsqError as error:
        raise _explain(error, tally) from error
    finally:
        if express is not None:
            express.restore_signals()
    if options.dry_run:
        note(f"{tally.published:,} would be published to {tally.topic}", is_quiet=options.quiet)
    else:
        tally.report(is_json=options.json, is_quiet=options.quiet)
    return ExitCode.DONE if tally.interrupt is None else tally.interrupt


def _make_express(
    options: argparse.Namespace, target: Target, tally: Tally, splitter: Splitter
) -> ExpressPub | None:
    """Return the express, if it can do what is asked for; None otherwise."""
    bodies = [body.encode("utf-8", "surrogateescape") for body in options.bodies]
    if (
        any(getattr(options, name) for name in _SPECIAL)
        or (target.lookupds or target.tls or target.auth_secret or not target.tcp_addresses)
        or not (options.retries and all(bodies))
    ):
        return None
    return ExpressPub(
        target.tcp_addresses[0],
        tally,
        splitter,
        bodies,
        timeout_s=max(options.timeout, 1.0),
        batch_count=options.batch,
        batch_bytes=options.batch_bytes,
        window_count=options.window,
        has_progress=sys.stderr.isatty() and not options.quiet,
    )


def _run_job(
    options: argparse.Namespace,
    target: Target,
    tally: Tally,
    cutter: Splitter | Unframer,
    express: ExpressPub | None = None,
) -> None:
    # Imported here: the express is for those who do not want to wait for asyncio.
    from nsqd.cli import loop
    from nsqd.cli.messages.job import Job

    async def work() -> None:
        job = Job(options, tally, cutter)
        if express is not None:
            job.go_on_with(express.take_rest(), has_input=express.has_input)
        await (job.count() if options.dry_run else job.run(target))

    loop.run(work(), is_verbose=options.verbose)


def _explain(error: NsqError, tally: Tally) -> CliError:
    text = str(error)
    cause = error.__cause__
    if isinstance(cause, ConnectError) and str(cause) not in text:
        text = f"{text} ({cause})"
    return CliError(f"{text}\n{tally.certainty()}", find_exit_code(error))
