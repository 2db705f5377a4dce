"""`nsq to-file`: messages into files. A message is finished after it survives a power cut."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from nsqd.cli import arguments, loop
from nsqd.cli.consuming import consumer_options
from nsqd.cli.output import CliError, ExitCode, note, plural, print_json, show_bytes
from nsqd.cli.sinks import intake
from nsqd.cli.sinks.budget import ByteBudget
from nsqd.cli.sinks.files.folders import Folders
from nsqd.cli.sinks.files.names import FileNames
from nsqd.cli.sinks.files.writer import FilePlan, FileReport, TopicWriter
from nsqd.cli.sinks.intake import Intake, IntakePlan, Topics
from nsqd.cli.target import Target, find_target
from nsqd.client import Consumer

EXAMPLES: Final = {
    "to-file": """examples:
  nsq to-file orders --output-dir /var/log/orders
  nsq to-file 'orders.*' --output-dir out --work-dir work --gzip --rotate-interval 1h
  nsq to-file orders --output-dir out --rotate-size 1g --on-rotate 'upload "$1"'"""
}
FILENAME_FORMAT: Final = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
DATETIME_FORMAT: Final = "%Y-%m-%d_%H"
_THREAD_COUNT: Final = 8
_MAX_HOOKS_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True)
class Archive:
    """Where and how files are written, for all topics."""

    folders: Folders
    plan: FilePlan
    filename_format: str = FILENAME_FORMAT
    datetime_format: str = DATETIME_FORMAT
    host_identifier: str = ""
    has_rev: bool = True
    is_utc: bool = False
    on_rotate: str | None = None
    is_quiet: bool = False
    is_verbose: bool = False
    log_prefix: str = "nsq: "

    def names_of(self, topic: str) -> FileNames:
        """Return the names of a topic's files.

        Raises:
            CliError: the format cannot be used.
        """
        try:
            return FileNames.make(
                self.filename_format,
                topic,
                datetime_format=self.datetime_format,
                host_identifier=self.host_identifier,
                has_rev=self.has_rev,
                is_gzip=self.folders.gzip_level is not None,
                is_utc=self.is_utc,
            )
        except ValueError as error:
            raise CliError(str(error), ExitCode.USAGE) from error


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq to-file`."""
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="a name, or a pattern: 'a.*'")
    parser.add_argument("--topic-pattern", metavar="REGEX", help="only topics that match")
    parser.add_argument("--topic-refresh", type=arguments.duration, default=60.0, metavar="TIME",
                        help="how often new topics are looked for (1m)")  # fmt: skip
    intake.add_arguments(parser, "nsq_to_file")
    files = parser.add_argument_group("files")
    files.add_argument("--output-dir", required=True, metavar="DIR")
    files.add_argument("--work-dir", metavar="DIR", help="for files that are being written")
    files.add_argument("--filename-format", default=FILENAME_FORMAT, metavar="TEXT",
                       help="<TOPIC>, <HOST>, <REV>, <DATETIME>, <PID>")  # fmt: skip
    files.add_argument("--datetime-format", default=DATETIME_FORMAT, metavar="TEXT",
                       help="codes of strftime")  # fmt: skip
    files.add_argument("--utc", action="store_true", help="not the local time")
    files.add_argument("--host-identifier", default="", metavar="TEXT",
                       help="<SHORT_HOST>, <HOSTNAME>")  # fmt: skip
    files.add_argument("--gzip", action="store_true")
    files.add_argument("--gzip-level", type=int, choices=range(1, 10), default=6, metavar="1-9")
    rotation = parser.add_argument_group("rotation")
    rotation.add_argument("--rotate-size", type=arguments.size, default=0, metavar="SIZE")
    rotation.add_argument("--rotate-interval", type=arguments.duration, default=0.0, metavar="TIME")
    rotation.add_argument("--skip-empty-files", action="store_true")
    rotation.add_argument(
        "--on-rotate", metavar="CMD", help="for the shell; $1 is the path of a finished file"
    )
    safety = parser.add_argument_group("safety")
    safety.add_argument("--sync-interval", type=arguments.duration, default=1.0, metavar="TIME",
                        help="at most so long until fsync and FIN (1s)")  # fmt: skip
    safety.add_argument("--on-disk-full", choices=("wait", "exit"), default="wait")
    arguments.add_consumer(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq to-file`.

    Raises:
        CliError: it could not be done.
    """
    target = find_target(options)
    if not options.topics and not options.topic_pattern:
        raise CliError("a topic or --topic-pattern is needed", ExitCode.USAGE)
    intake.check_names(options.topics, options.channel)
    if options.sync_interval <= 0:
        raise CliError("--sync-interval is positive", ExitCode.USAGE)
    try:
        regex = re.compile(options.topic_pattern) if options.topic_pattern else None
    except re.error as error:
        raise CliError(f"--topic-pattern: {error}", ExitCode.USAGE) from error
    output_dir = os.path.abspath(options.output_dir)
    archive = Archive(
        Folders(
            output_dir,
            os.path.abspath(options.work_dir) if options.work_dir else output_dir,
            options.gzip_level if options.gzip else None,
        ),
        FilePlan(
            options.sync_interval,
            options.rotate_size,
            options.rotate_interval,
            skips_empty=options.skip_empty_files,
            exits_on_full_disk=options.on_disk_full == "exit",
        ),
        options.filename_format,
        options.datetime_format,
        options.host_identifier,
        is_utc=options.utc,
        on_rotate=options.on_rotate,
        is_quiet=options.quiet,
        is_verbose=options.verbose,
    )
    plan = IntakePlan(
        Topics(tuple(options.topics), regex),
        options.channel,
        options.max_in_flight,
        consumer_options(options, target, user_agent="nsq-to-file", backoff=None),
        options.topic_refresh,
        options.timeout,
        grace_s=options.grace,
        is_until_empty=options.until_empty,
        is_quiet=options.quiet,
    )
    report = loop.run(write_files(archive, plan, target), is_verbose=options.verbose)
    if options.json:
        print_json(report)
    else:
        note(
            f"{plural(report['messages'], 'message')} in {plural(report['files'], 'file')},"
            f" {show_bytes(report['bytes'])}, {plural(report['syncs'], 'sync')},"
            f" {report['seconds']:.1f} s",
            is_quiet=options.quiet,
        )
    return ExitCode.DONE


async def write_files(archive: Archive, plan: IntakePlan, target: Target) -> dict[str, Any]:
    """Consume and write until a signal comes; return the counts.

    Raises:
        CliError: it could not be done.
    """
    archive.names_of("topic")  # A format that cannot be used ends it now, not with a message.
    try:
        archive.folders.prepare()
    except OSError as error:
        raise CliError(str(error)) from error
    hooks = Hooks(archive)
    report = FileReport(_Notes(archive).add, hooks.add)
    consuming = Intake(plan, target)
    writers: list[TopicWriter] = []
    with ThreadPoolExecutor(_THREAD_COUNT, "files") as executor:

        async def handle(consumer: Consumer, topic: str) -> None:
            writer = TopicWriter(
                consumer,
                archive.names_of(topic),
                archive.folders,
                archive.plan,
                report,
                ByteBudget(consumer, plan.max_in_flight),
                executor,
            )
            writers.append(writer)
            await writer.run()

        def show() -> str:
            rate = report.messages / max(consuming.seconds, 1e-9)
            return f"{report.messages:,} messages, {rate:,.0f}/s, {report.files:,} files"

        def close_files() -> None:
            for writer in writers:
                writer.close_file()

        consuming.set_hangup(close_files)
        await consuming.run(handle, show)
        await hooks.finish(plan.grace_s)
    return {
        "messages": report.messages,
        "bytes": report.body_bytes,
        "files": report.files,
        "syncs": report.syncs,
        "failed_hooks": hooks.failed,
        "seconds": round(consuming.seconds, 3),
    }


class _Notes:
    """The events of the writers: all of them with -v, errors alone without."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, text: str) -> None:
        is_chatty = text.startswith(("opening", "adopted"))
        if self._archive.is_verbose or not is_chatty:
            note(f"{self._archive.log_prefix}{text}", is_quiet=self._archive.is_quiet)


class Hooks:
    """Runs --on-rotate for each finished file, one at a time; its failure changes nothing else."""

    def __init__(self, archive: Archive) -> None:
        """Prepare; the first file starts it."""
        self.failed = 0
        self._command = archive.on_rotate
        self._is_quiet = archive.is_quiet
        self._waiting: deque[str] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, path: str) -> None:
        """Have the command run for a file."""
        if self._command is None:
            return
        if len(self._waiting) >= _MAX_HOOKS_WAITING:
            self.failed += 1
            note(f"nsq: --on-rotate is too slow, not run for {path}", is_quiet=self._is_quiet)
            return
        self._waiting.append(path)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(self._command))

    async def finish(self, grace_s: float) -> None:
        """Wait until the command has run for all files, for some time."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=grace_s)
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._waiting:
            self.failed += len(self._waiting)
            note(f"nsq: --on-rotate did not run for {len(self._waiting):,} files")

    async def _work(self, command: str) -> None:
        while self._waiting:
            path = self._waiting[0]
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", command, "sh", path, stdin=asyncio.subprocess.DEVNULL
            )
            code = await process.wait()
            self._waiting.popleft()
            if code:
                self.failed += 1
                note(f"nsq: --on-rotate ended with {code} for {path}", is_quiet=self._is_quiet)
