"""python -m diskqueue: look into queues. Takes no locks and never changes a queue.

Exit codes: 0 all is well, 1 damage was found, 2 wrong usage or unreadable files.
"""

import argparse
import base64
import json
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from diskqueue import envelope, layout, salvage, segment
from diskqueue.checksums import audit
from diskqueue.checksums.entries import make_seed
from diskqueue.checksums.marks import have_same_mark
from diskqueue.errors import CorruptSegmentError
from diskqueue.tools import check
from diskqueue.tools.plain_text import escape_bytes

EXIT_OK = 0
EXIT_DAMAGE = 1
EXIT_UNUSABLE = 2

_PREVIEW_BYTES = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = _make_parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output, such as head, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"diskqueue: {where}{error.strerror or error}", file=sys.stderr)
        return EXIT_UNUSABLE
    return code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m diskqueue",
        description="Looks into the queue files of nsqd. Takes no locks and changes no queue.",
        epilog="exit code: 0 all is well, 1 damage was found, 2 wrong usage or unreadable files",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "check",
        help="walk through every queue of a data directory",
        description="Walks through every queue of a data directory and reports what a start of "
        "nsqd would find. The newest records of a running daemon are not in its metadata yet.",
    )
    command.add_argument("directory", metavar="DIR", help="the --data-path of nsqd")
    command.set_defaults(command=_check)

    command = commands.add_parser(
        "dump",
        help="print the records of a segment",
        description="Prints the records of a segment file, one line each.",
    )
    command.add_argument("file", metavar="FILE", help="a .dat file, or a .bad one")
    command.add_argument("--json", action="store_true", help="one JSON object per line")
    command.add_argument("--limit", type=_count, metavar="N", help="print the first N records")
    command.add_argument("--bodies", action="store_true", help="print whole bodies")
    command.set_defaults(command=_dump)

    command = commands.add_parser(
        "salvage",
        help="copy what can be read of a damaged segment",
        description="Copies the readable records of a damaged segment into a good one, also those "
        "behind the damage. To deliver them again, those before the damage included, stop nsqd, "
        "give the result the name of the queue's next segment (one above the highest), start nsqd.",
    )
    command.add_argument("file", metavar="FILE", help="the damaged segment; it is not changed")
    command.add_argument("--output", metavar="FILE", help="where to (default: FILE.salvaged)")
    command.set_defaults(command=_salvage)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _check(options: argparse.Namespace) -> int:
    queues = layout.list_queues(options.directory)
    damaged_count = 0
    for files in queues.values():
        report = check.check_queue(options.directory, files)
        damaged_count += bool(report.damage)
        _print_report(report)
    print(f"{_plural(len(queues), 'queue')}, {damaged_count or 'none'} damaged")
    return EXIT_DAMAGE if damaged_count else EXIT_OK


def _print_report(report: check.QueueReport) -> None:
    topic, channel = layout.split_queue_name(report.name)
    print(f"topic {topic}" if channel is None else f"topic {topic} channel {channel}")
    metadata = report.metadata
    if metadata is not None:
        print(
            f"  metadata  depth {metadata.depth}, read {metadata.read_file},{metadata.read_pos},"
            f" write {metadata.write_file},{metadata.write_pos}"
        )
    print(f"  segments  {report.segment_count}, {_plural(report.segment_bytes, 'byte')}")
    finished = f", {report.finished_count} finished" if report.finished_count else ""
    print(f"  records   {report.record_count}{finished}")
    for path in report.bad_files:
        print(f"  set aside {path}")
    for note in report.notes:
        print(f"  note      {note}")
    for damage in report.damage:
        print(f"  DAMAGE    {damage}")


def _is_segment(path: str) -> bool:
    if layout.is_other_file(os.path.basename(path)):
        print(f"diskqueue: {path} is no segment", file=sys.stderr)
        return False
    return True


def _dump(options: argparse.Namespace) -> int:
    if not _is_segment(options.file):
        return EXIT_UNUSABLE
    records = segment.iter_records(options.file)
    try:
        for offset, payload in islice(records, options.limit):
            message = envelope.decode(payload)
            if options.json:
                print(_format_json(offset, message, whole_body=options.bodies))
            else:
                print(_format_line(offset, message, whole_body=options.bodies))
    except CorruptSegmentError as error:
        sys.stdout.flush()
        print(f"diskqueue: {error}", file=sys.stderr)
        return EXIT_DAMAGE
    return EXIT_OK


def _format_line(offset: int, message: envelope.Envelope, *, whole_body: bool) -> str:
    body = message.body if whole_body else message.body[:_PREVIEW_BYTES]
    more = "" if len(body) == len(message.body) else "..."
    return (
        f"{offset:>10}  {_format_time(message.timestamp_ns)}  attempts={message.attempts}"
        f"  id={escape_bytes(message.message_id)}  size={len(message.body)}"
        f"  {escape_bytes(body)}{more}"
    )


def _format_json(offset: int, message: envelope.Envelope, *, whole_body: bool) -> str:
    fields: dict[str, object] = {
        "offset": offset,
        "timestamp": _format_time(message.timestamp_ns),
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "id": message.message_id.decode("latin-1"),
        "size": len(message.body),
    }
    if not whole_body:
        fields["preview"] = escape_bytes(message.body[:_PREVIEW_BYTES])
    else:
        try:
            fields["body"] = message.body.decode("utf-8")
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(message.body).decode("ascii")
    return json.dumps(fields, ensure_ascii=False)


def _format_time(timestamp_ns: int) -> str:
    seconds, fraction_ns = divmod(timestamp_ns, 10**9)
    # 64 bits of nanoseconds are years from 1677 to 2262.
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction_ns:09d}Z"


def _salvage(options: argparse.Namespace) -> int:
    if not _is_segment(options.file):
        return EXIT_UNUSABLE
    output = options.output or f"{options.file}.salvaged"
    with open(options.file, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            print(f"{options.file} is empty, nothing to salvage")
            return EXIT_OK
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _copy_records(_find_spans(options.file, data), output)


def _find_spans(path: str, data: mmap.mmap) -> Iterator[tuple[salvage.Span, bytes]]:
    """Cut a segment into records and lost bytes, by its checksums as far as it has any.

    Yields each with its bytes: lengths that checksums know are repaired.
    """
    checksums = audit.read_checksums(layout.checksum_path(path))
    name = layout.parse_any_segment_name(os.path.basename(path))
    if checksums is None or name is None:
        yield from _find_by_shape(data, 0, len(data))
        return

    def read_at(size: int, offset: int) -> bytes:
        return data[offset : offset + size]

    uncovered: int | None = None
    is_marked = have_same_mark(path, layout.checksum_path(path))
    seed = make_seed(*name)
    for piece in audit.iter_pieces(read_at, checksums, seed, 0, len(data), is_marked=is_marked):
        if not piece.is_covered:
            uncovered = piece.start if uncovered is None else uncovered
            continue
        if uncovered is not None:
            yield from _find_by_shape(data, uncovered, piece.start)
            uncovered = None
        if piece.denied_count:
            yield salvage.Span(piece.start, piece.end, is_kept=False), b""
        else:
            yield from _cut(piece)
    if uncovered is not None:
        yield from _find_by_shape(data, uncovered, len(data))


def _find_by_shape(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[salvage.Span, bytes]]:
    part = data[start:end]
    for span in salvage.find_spans(part):
        moved = salvage.Span(
            *(start + span.start, start + span.end, span.is_kept, span.is_doubtful)
        )
        yield moved, part[span.start : span.end]


def _cut(piece: audit.Piece) -> Iterator[tuple[salvage.Span, bytes]]:
    """Yield the records of a piece that checksums have found good."""
    limits = segment.RecordLimits(min_record_bytes=0, max_record_bytes=len(piece.data))
    size = len(piece.data)
    for start, end in zip(*segment.split_records(piece.data, 0, size, size, limits), strict=True):
        first = start - segment.PREFIX_BYTES
        span = salvage.Span(piece.start + first, piece.start + end, is_kept=True)
        yield span, piece.data[first:end]


def _copy_records(spans: Iterator[tuple[salvage.Span, bytes]], output: str) -> int:
    kept_count = doubtful_count = kept_bytes = lost_bytes = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(output, flags, layout.FILE_MODE), "wb") as target:
        for span, content in _join_lost(spans):
            if not span.is_kept:
                lost_bytes += span.end - span.start
                print(
                    f"lost      {span.start}..{span.end}  {_plural(span.end - span.start, 'byte')}"
                )
                continue
            if span.is_doubtful:
                doubtful_count += 1
                print(f"doubtful  {span.start}..{span.end}  kept, but damage follows it")
            target.write(content)
            kept_count += 1
            kept_bytes += span.end - span.start
        target.flush()
        os.fsync(target.fileno())
    if kept_count == 0:
        os.unlink(output)
        print(f"nothing kept; lost {_plural(lost_bytes, 'byte')}")
        return EXIT_DAMAGE
    print(
        f"kept {_plural(kept_count, 'record')} ({doubtful_count or 'none'} doubtful),"
        f" {_plural(kept_bytes, 'byte')}, in {output}; lost {_plural(lost_bytes, 'byte')}"
    )
    return EXIT_DAMAGE if lost_bytes or doubtful_count else EXIT_OK


def _join_lost(
    spans: Iterator[tuple[salvage.Span, bytes]],
) -> Iterator[tuple[salvage.Span, bytes]]:
    """Yield the same spans, with neighbouring lost ones as one."""
    lost: salvage.Span | None = None
    for span, content in spans:
        if span.is_kept:
            if lost is not None:
                yield lost, b""
                lost = None
            yield span, content
        else:
            lost = span if lost is None else salvage.Span(lost.start, span.end, is_kept=False)
    if lost is not None:
        yield lost, b""


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


if __name__ == "__main__":
    sys.exit(main())
