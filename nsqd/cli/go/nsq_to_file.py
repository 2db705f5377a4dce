"""`nsq_to_file`: Go's tool, by the code of `nsq to-file`.

It differs where Go's loses something: the directory is synced before FIN, nothing is given up after
five attempts, a full disk is waited for, SIGHUP reopens, leftovers in the work directory are
adopted, a torn last line is ended before the next one, and the topics are looked up at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nsqd.cli import loop
from nsqd.cli.go.options import (
    VERSION,
    UsageError,
    check_addresses,
    check_max_in_flight,
    log_give_up,
    parse,
    read_go_nsq,
    run_tool,
)
from nsqd.cli.output import CliError
from nsqd.cli.sinks.files.folders import Folders
from nsqd.cli.sinks.files.names import REV
from nsqd.cli.sinks.files.writer import FilePlan
from nsqd.cli.sinks.intake import IntakePlan, Topics
from nsqd.cli.sinks.to_file import DATETIME_FORMAT, FILENAME_FORMAT, Archive, write_files
from nsqd.cli.target import Node, Target
from nsqd.client.address import Address
from nsqd.config.flags import flag
from nsqd.config.kinds import BOOL, DURATION, INT, TEXT, TEXTS
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

PROGRAM = "nsq_to_file"
_LEVELS = ("debug", "info", "warn", "error", "fatal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of nsq_to_file."""

    channel: str = flag("channel", "nsq_to_file", TEXT, "nsq channel")
    consumer_opt: tuple[str, ...] = flag(
        "consumer-opt", (), TEXTS, "option of go-nsq's Config, key,value (repeatable)"
    )
    datetime_format: str = flag(
        "datetime-format", DATETIME_FORMAT, TEXT, "strftime codes for <DATETIME> in file names"
    )
    filename_format: str = flag(
        "filename-format",
        FILENAME_FORMAT,
        TEXT,
        "output file names (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced)",
    )
    gzip: bool = flag("gzip", False, BOOL, "gzip output files")
    gzip_level: int = flag("gzip-level", 6, INT, "gzip compression level (1-9)")
    host_identifier: str = flag(
        "host-identifier", "", TEXT, "in place of the host's name: <SHORT_HOST>, <HOSTNAME>"
    )
    http_client_connect_timeout_s: float = flag(
        "http-client-connect-timeout", 2.0, DURATION, "timeout for HTTP connect"
    )
    http_client_request_timeout_s: float = flag(
        "http-client-request-timeout", 5.0, DURATION, "timeout for HTTP request"
    )
    log_level: str = flag("log-level", "info", TEXT, "debug, info, warn, error, or fatal")
    log_prefix: str = flag("log-prefix", "[nsq_to_file] ", TEXT, "log message prefix")
    lookupd_http_address: tuple[str, ...] = flag(
        "lookupd-http-address", (), TEXTS, "nsqlookupd HTTP address (repeatable)"
    )
    max_in_flight: int = flag(
        "max-in-flight", 200, INT, "max number of messages to allow in flight"
    )
    nsqd_tcp_address: tuple[str, ...] = flag(
        "nsqd-tcp-address", (), TEXTS, "nsqd TCP address (repeatable)"
    )
    output_dir: str = flag("output-dir", "/tmp", TEXT, "directory to write output files to")
    rotate_interval_s: float = flag(
        "rotate-interval", 0.0, DURATION, "rotate the file every duration"
    )
    rotate_size: int = flag("rotate-size", 0, INT, "rotate the file when it is larger (bytes)")
    skip_empty_files: bool = flag("skip-empty-files", False, BOOL, "skip writing empty files")
    sync_interval_s: float = flag(
        "sync-interval", 30.0, DURATION, "sync file to disk every duration"
    )
    topic: tuple[str, ...] = flag("topic", (), TEXTS, "nsq topic (repeatable)")
    topic_pattern: str = flag("topic-pattern", "", TEXT, "only topics that match this pattern")
    topic_refresh_s: float = flag(
        "topic-refresh", 60.0, DURATION, "how often the topic list is refreshed"
    )
    version: bool = flag("version", False, BOOL, "print version string")
    work_dir: str = flag(
        "work-dir", "", TEXT, "directory for files in progress, before they move to output-dir"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_to_file and return its exit code."""
    return run_tool(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> Options:
    rest: list[str] = []
    options = parse(Options, argv, PROGRAM, rest)
    if rest:
        # Of Go's tools this one alone looks at them.
        raise UsageError(f"unknown arguments: [{' '.join(rest)}]")
    return options


def _run(options: Options) -> int:
    if options.version:
        print(f"{PROGRAM} {VERSION}")
        return 0
    regex = _check(options)
    config = read_go_nsq(options.consumer_opt, "consumer-opt")
    try:
        nodes = tuple(Node(Address.parse(each), None) for each in options.nsqd_tcp_address)
    except ValueError as error:
        raise UsageError(str(error)) from error
    plan = IntakePlan(
        Topics(options.topic, regex),
        options.channel,
        options.max_in_flight,
        {
            "user_agent": f"{PROGRAM}/{VERSION[1:]}",
            "backoff": None,
            **config.consumer_options(on_give_up=log_give_up),
        },
        options.topic_refresh_s,
        options.http_client_request_timeout_s,
        options.http_client_connect_timeout_s,
        is_quiet=_LEVELS.index(options.log_level.lower()) > _LEVELS.index("warn"),
    )
    target = Target(nodes, options.lookupd_http_address)
    try:
        archive = _make_archive(options)
        loop.run(write_files(archive, plan, target), is_verbose=archive.is_verbose)
    except CliError as error:
        raise UsageError(str(error), error.code) from error
    return 0


def _make_archive(options: Options) -> Archive:
    output_dir = os.path.abspath(options.output_dir)
    work_dir = os.path.abspath(options.work_dir) if options.work_dir else output_dir
    has_rotation = options.rotate_size > 0 or options.rotate_interval_s > 0
    return Archive(
        Folders(
            output_dir,
            work_dir,
            options.gzip_level if options.gzip else None,
            is_appending=not options.gzip and options.rotate_interval_s <= 0,
            max_bytes=max(options.rotate_size, 0),
        ),
        FilePlan(
            options.sync_interval_s,
            max(options.rotate_size, 0),
            max(options.rotate_interval_s, 0.0),
            skips_empty=options.skip_empty_files,
        ),
        options.filename_format,
        options.datetime_format,
        options.host_identifier,
        has_rev=options.gzip or has_rotation or work_dir != output_dir,
        is_quiet=_LEVELS.index(options.log_level.lower()) > _LEVELS.index("warn"),
        is_verbose=_LEVELS.index(options.log_level.lower()) <= _LEVELS.index("info"),
        log_prefix=options.log_prefix,
    )


def _check(options: Options) -> re.Pattern[str] | None:
    """Refuse the combinations of flags that Go refuses; return the pattern of the topics."""
    for name, value in (
        ("http-client-connect-timeout", options.http_client_connect_timeout_s),
        ("http-client-request-timeout", options.http_client_request_timeout_s),
        ("sync-interval", options.sync_interval_s),
        ("topic-refresh", options.topic_refresh_s),
    ):
        if value <= 0:
            raise UsageError(f"--{name} should be positive")
    check_max_in_flight(options.max_in_flight)
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address, "nsqd-tcp-address")
    if not 1 <= options.gzip_level <= 9:
        raise UsageError(f"invalid --gzip-level value ({options.gzip_level}), should be 1-9")
    if not options.topic and not options.topic_pattern:
        raise UsageError("--topic or --topic-pattern required")
    if not options.topic and not options.lookupd_http_address:
        raise UsageError("--lookupd-http-address must be specified when no --topic specified")
    if not all(map(is_valid_topic_name, options.topic)):
        raise UsageError("invalid topic name")
    if not is_valid_channel_name(options.channel):
        raise UsageError("--channel is required" if not options.channel else "invalid channel name")
    return _check_formats(options)


def _check_formats(options: Options) -> re.Pattern[str] | None:
    if options.log_level.lower() not in _LEVELS:
        raise UsageError("--log-level is invalid")
    needs_rev = options.gzip or options.rotate_size > 0 or options.rotate_interval_s > 0
    if (needs_rev or options.work_dir) and REV not in options.filename_format:
        text = "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        raise UsageError(text, 2)
    try:
        return re.compile(options.topic_pattern) if options.topic_pattern else None
    except re.error as error:
        raise UsageError(f"--topic-pattern: {error}") from error
