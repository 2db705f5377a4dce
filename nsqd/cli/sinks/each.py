"""`nsq each`: run a program for each message; its exit code is the answer.

| exit code | |
| --- | --- |
| 0 | finished |
| 65 | published to the dead-letter topic, then finished |
| else, or a signal | comes again, and slows the consumer down |

Messages are touched while their program runs. A program has a session of its own, so that Ctrl-C
lets it end; what runs too long is ended with all its children.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
from dataclasses import dataclass, field
from typing import Any, Final, cast

from nsqd.cli import arguments, loop
from nsqd.cli.consuming import consumer_options
from nsqd.cli.output import CliError, ExitCode, note, print_json
from nsqd.cli.sinks import intake
from nsqd.cli.sinks.intake import Intake, IntakePlan, Topics
from nsqd.cli.target import Target, find_target
from nsqd.client import Batch, Consumer, Message, Observer
from nsqd.client.consume.dead_letters import DeadLetters
from nsqd.client.settings import ConnectionOptions

EXAMPLES: Final = {
    "each": """examples:
  nsq each orders billing -- sh charge.sh
  nsq each orders mail -j 8 --kill-after 30s -- sh -c 'sendmail "$(cat)"'
  nsq each orders count --batch 100 -- sh -c 'tr "\\0" "\\n" | wc -l'"""
}
DEAD_LETTER: Final = 65
_BATCH_WAIT_S: Final = 0.5
_MERCY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class EachPlan:
    """The program to run, and how many at a time."""

    command: tuple[str, ...]
    jobs: int = 4
    batch_count: int = 1
    kill_after_s: float = 600.0
    dead_letter: str = ""
    source_options: ConnectionOptions = field(default_factory=ConnectionOptions)
    is_quiet: bool = False


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq each`."""
    parser.usage = "nsq each TOPIC CHANNEL [FLAG...] -- CMD..."
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("channel", metavar="CHANNEL")
    parser.add_argument("command", nargs="+", metavar="CMD",
                        help="gets the body on stdin; NSQ_ID, NSQ_ATTEMPTS, NSQ_TOPIC,"
                        " NSQ_TIMESTAMP")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=arguments.positive, default=4, metavar="N",
                        help="programs at a time (4)")  # fmt: skip
    parser.add_argument("--batch", type=arguments.positive, default=1, metavar="N",
                        help="so many messages for one program, with NUL between")  # fmt: skip
    parser.add_argument("--kill-after", type=arguments.duration, default=600.0, metavar="TIME",
                        help="end programs that run longer (10m)")  # fmt: skip
    intake.add_ending(parser)
    arguments.add_consumer(parser)
    parser.set_defaults(max_in_flight=None)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq each`.

    Raises:
        CliError: it could not be done.
    """
    target = find_target(options)
    intake.check_names([options.topic], options.channel)
    command = tuple(options.command)
    if shutil.which(command[0]) is None:
        raise CliError(f"no such program: {command[0]}", ExitCode.USAGE)
    plan = EachPlan(
        command,
        options.jobs,
        options.batch,
        options.kill_after,
        options.dead_letter or f"{options.topic}.dead",
        cast(ConnectionOptions, target.connection_options()),
        options.quiet,
    )
    # Messages that wait here are not touched, so that no more are asked for than can run.
    most = options.jobs * options.batch
    consuming = IntakePlan(
        Topics((options.topic,)),
        options.channel,
        min(options.max_in_flight or most, most),
        consumer_options(options, target, user_agent="nsq-each"),
        timeout_s=options.timeout,
        grace_s=options.grace,
        is_quiet=options.quiet,
        is_until_empty=options.until_empty,
    )
    report = loop.run(run_each(plan, consuming, target), is_verbose=options.verbose)
    if options.json:
        print_json(report)
    else:
        note(
            f"{report['done']:,} done, {report['failed']:,} come again,"
            f" {report['dead']:,} dead letters, {report['seconds']:.1f} s",
            is_quiet=options.quiet,
        )
    return ExitCode.DONE


async def run_each(plan: EachPlan, consuming: IntakePlan, target: Target) -> dict[str, Any]:
    """Consume and run programs until a signal comes; return the counts.

    Raises:
        CliError: it could not be done.
    """
    letters = DeadLetters(plan.dead_letter, None, Observer(), plan.source_options)
    programs = Programs(plan, letters)
    running = Intake(consuming, target)

    async def handle(consumer: Consumer, _topic: str) -> None:
        create = asyncio.get_running_loop().create_task
        workers = [create(programs.work(consumer)) for _ in range(plan.jobs)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def show() -> str:
        return f"{programs.done:,} done, {programs.failed:,} come again, {programs.running} run"

    try:
        await running.run(handle, show)
    finally:
        await letters.close()
    return {
        "done": programs.done,
        "failed": programs.failed,
        "dead": programs.dead,
        "seconds": round(running.seconds, 3),
    }


class Programs:
    """Runs programs and answers by their exit codes."""

    def __init__(self, plan: EachPlan, letters: DeadLetters) -> None:
        """Args: letters: takes the messages that a program gives up."""
        self.done = 0
        self.failed = 0
        self.dead = 0
        self.running = 0
        self._plan = plan
        self._letters = letters

    async def work(self, consumer: Consumer) -> None:
        """Run one program after the other until the consumer is closed."""
        async for batch in consumer.batches(self._plan.batch_count, _BATCH_WAIT_S):
            self.running += 1
            try:
                await self._deal_with(batch)
            except asyncio.CancelledError:
                batch.req(0, backoff=False)
                raise
            finally:
                self.running -= 1

    async def _deal_with(self, batch: Batch) -> None:
        messages = list(batch)
        code = await self._run(messages)
        if code == 0:
            self.done += len(messages)
            batch.fin()
        elif code == DEAD_LETTER:
            self.dead += len(messages)
            await asyncio.gather(*(self._letters.give_up_now(message) for message in messages))
        else:
            self.failed += len(messages)
            batch.req()

    async def _run(self, messages: list[Message]) -> int:
        """Run the program; return its exit code, or minus the number of the signal."""
        plan = self._plan
        try:
            process = await asyncio.create_subprocess_exec(
                *plan.command,
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **_environment(messages)},
                start_new_session=True,
            )
        except OSError as error:
            note(f"nsq: {plan.command[0]}: {error}", is_quiet=plan.is_quiet)
            return 1
        # Apart from the wait: a program may end, or run for long, without reading its input.
        feeding = asyncio.ensure_future(_feed(process, messages))
        try:
            async with asyncio.timeout(plan.kill_after_s):
                code = await process.wait()
        except TimeoutError:
            text = f"ended after {plan.kill_after_s:g} s: message {_name(messages[0])}"
            note(f"nsq: {text}", is_quiet=plan.is_quiet)
            code = await _end(process)
            code = code or -signal.SIGTERM  # It was not done in time, even if it says so now.
        except asyncio.CancelledError:
            await _end(process)
            raise
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        return code


def _environment(messages: list[Message]) -> dict[str, str]:
    first = messages[0]
    found = {"NSQ_TOPIC": first.topic, "NSQ_CHANNEL": first.channel}
    if len(messages) == 1:
        found["NSQ_ID"] = _name(first)
        found["NSQ_ATTEMPTS"] = str(first.attempts)
        found["NSQ_TIMESTAMP"] = str(first.timestamp_ns)
    return {**found, "NSQ_COUNT": str(len(messages))}


def _name(message: Message) -> str:
    return message.id.decode("ascii", "replace")


async def _feed(process: asyncio.subprocess.Process, messages: list[Message]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(b"\0".join(message.body for message in messages))
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> int:
    """End a program and its children: asked first, then killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MERCY_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()
