"""`python -m bench.spark`: how fast Spark reads queues and publishes, in one warm session.

    make bench-spark
    python -m bench.spark --rounds 5 --segment-mb 100 --json result.json

Five segments of 200 B messages are made, and the same bodies as lines of text. Queries take turns,
round after round, so that a busy machine hurts them alike; the best round counts, and the CPU time
of all processes is shown beside it. Exit status: 0, or 1 if results differ from a plain read.
"""

import argparse
import functools
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from bench.daemon_process import Setting, own_target, running
from diskqueue.layout import metadata_path, segment_path
from spark_jobs import register
from spark_jobs.write.sink import publish

BODY_BYTES = 200
SEGMENT_COUNT = 5
MANY_SEGMENTS = 20
MANY_QUEUES = 1000
_TIME_NS = 1_760_000_000_000_000_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SINK_MESSAGES = 1_000_000


@dataclass(slots=True)
class Timing:
    """The rounds of one measurement."""

    name: str
    message_count: int
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        return min(self.seconds)

    @property
    def rate(self) -> float:
        """Messages per second in the best round."""
        return self.message_count / self.best_s


@dataclass(slots=True)
class Result:
    """All figures that are printed and written."""

    timings: dict[str, Timing] = field(default_factory=dict)
    worker_rss_mb: dict[int, float] = field(default_factory=dict)
    planning_s: dict[int, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def write_segments(directory: Path, segment_bytes: int) -> int:
    """Make the queue `t` and the same bodies as text; return the messages per segment.

    Bodies differ in content and a little in size, so that no reader can take them for rows of one
    width.
    """
    filler = (b"The quick brown fox jumps over the lazy dog. " * 20)[: BODY_BYTES * 2]
    (directory / "data").mkdir()
    (directory / "text").mkdir()
    pack = struct.Struct(">iqH16s").pack
    count = segment_bytes // (30 + BODY_BYTES)
    for number in range(SEGMENT_COUNT):
        records, lines = [], []
        for index in range(count):
            size = BODY_BYTES - 50 + index % 101
            body = b"%07d " % index + filler[: size - 8]
            records.append(pack(26 + size, _TIME_NS + index * 1000, 1, b"%016x" % index) + body)
            lines.append(body)
        path = Path(segment_path(str(directory / "data"), "t", number))
        path.write_bytes(b"".join(records))
        (directory / "text" / f"{number}.txt").write_bytes(b"\n".join(lines) + b"\n")
    _write_metadata(directory / "data", "t", SEGMENT_COUNT, count)
    return count


def _write_metadata(directory: Path, name: str, segments: int, count: int) -> None:
    size = Path(segment_path(str(directory), name, segments - 1)).stat().st_size
    text = f"{segments * count}\n0,0\n{segments - 1},{size}\n"
    Path(metadata_path(str(directory), name)).write_text(text)


def link_segments(source: Path, target: Path, segments: int, count: int) -> None:
    """Make a queue of more or fewer segments out of links to those of another."""
    target.mkdir(exist_ok=True)
    for number in range(segments):
        original = segment_path(str(source), "t", number % SEGMENT_COUNT)
        os.link(original, segment_path(str(target), "t", number))
    _write_metadata(target, "t", segments, count)


def write_many_queues(directory: Path) -> None:
    """Make a thousand queues with ten messages each."""
    directory.mkdir()
    record = struct.pack(">iqH16s", 26 + BODY_BYTES, _TIME_NS, 1, b"0" * 16) + b"x" * BODY_BYTES
    for number in range(MANY_QUEUES):
        name = f"topic{number:04d}"
        Path(segment_path(str(directory), name, 0)).write_bytes(record * 10)
        _write_metadata(directory, name, 1, 10)


@contextmanager
def open_session() -> Iterator[SparkSession]:
    """Open a local session on two cores."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        # As nsqd-spark does.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


class Bench:
    """One run in one session."""

    def __init__(self, spark: SparkSession, directory: Path, count: int) -> None:
        self._spark = spark
        self._directory = directory
        self._count = count
        self.result = Result()

    def queries(self) -> dict[str, Callable[[], object]]:
        """Return the queries that take turns; each result is compared with a plain count."""
        data, text = str(self._directory / "data"), str(self._directory / "text")
        return {
            "bodies": lambda: self._scan(data, "timestamp,body"),
            "all columns": lambda: self._scan(data, None),
            "timestamp, attempts, id": lambda: self._scan(data, "timestamp,attempts,id"),
            "timestamp": lambda: self._scan(data, "timestamp"),
            "text": lambda: (
                self._spark.read.text(text)
                .agg(F.count(F.lit(1)), F.sum(F.octet_length("value")))
                .collect()
            ),
        }

    def _scan(self, path: str | None, columns: str | None, **options: str) -> object:
        """Return the count, the total size of the bodies if they are there, oldest and newest."""
        reader = self._spark.read.format("nsq").options(**options)
        if columns is not None:
            reader = reader.option("columns", columns)
        frame = reader.load(path)
        figures = [F.count(F.lit(1)), F.min("timestamp"), F.max("timestamp")]
        if "body" in frame.columns:
            figures.append(F.sum(F.length("body")))
        return frame.agg(*figures).collect()

    def measure(self, name: str, message_count: int, run: Callable[[], object]) -> object:
        """Run an action once more and note its time."""
        timing = self.result.timings.setdefault(name, Timing(name, message_count))
        cpu, started = cpu_s(os.getpid()), time.perf_counter()
        value = run()
        timing.seconds.append(time.perf_counter() - started)
        timing.cpu_seconds.append(cpu_s(os.getpid()) - cpu)
        return value

    def compare(self, rounds: int) -> None:
        """Measure the scans against Spark's own text reader."""
        queries = self.queries()
        for _ in range(2):  # The JVM compiles code that runs often.
            for run in queries.values():
                run()
        self._count_in_turns(queries, rounds)

    def _count_in_turns(self, queries: Mapping[str, Callable[[], object]], rounds: int) -> None:
        """Measure queries that each count all messages, and note those that do not."""
        total = self._count * SEGMENT_COUNT
        for _ in range(rounds):
            for name, run in queries.items():
                rows = self.measure(name, total, run)
                assert isinstance(rows, list)
                if rows[0][0] != total:
                    self.result.faults.append(f"{name}: {rows[0][0]} messages, not {total}")

    def over_http(self, rounds: int) -> None:
        """Measure the same scan of the directory and of an nsqd that has it, in turns."""
        data = self._directory / "data"

        def seed(path: Path) -> None:
            link_segments(data, path, SEGMENT_COUNT, self._count)

        with running(own_target("ours"), ["--mem-queue-size=0"], Setting(seed=seed)) as daemon:
            address = f"{daemon.http[0]}:{daemon.http[1]}"
            queries: dict[str, Callable[[], object]] = {
                "local": lambda: self._scan(str(data), "timestamp,body"),
                "over HTTP": lambda: self._scan(None, "timestamp,body", nsqd=address),
            }
            for run in queries.values():
                run()
            self._count_in_turns(queries, rounds)

    def grow(self, rounds: int) -> None:
        """Measure one, five and twenty segments, and the memory of the Python workers with each."""
        for segments in (1, SEGMENT_COUNT, MANY_SEGMENTS):
            path = self._directory / f"grown{segments}"
            link_segments(self._directory / "data", path, segments, self._count)
            run = functools.partial(self._scan, str(path), None)
            for _ in range(rounds):
                self.measure(f"{segments} segments", self._count * segments, run)
            self.result.worker_rss_mb[segments] = worker_rss_bytes(os.getpid()) / 1e6

    def many_queues(self, rounds: int) -> None:
        """Measure a thousand queues: time to plan, and to count."""
        path = self._directory / "queues"
        write_many_queues(path)
        one = self._directory / "grown1"
        for count, directory in ((1, one), (MANY_QUEUES, path)):
            best = float("inf")
            for _ in range(rounds + 1):
                started = time.perf_counter()
                frame = (
                    self._spark.read.format("nsq").option("columns", "offset").load(str(directory))
                )
                frame.rdd.getNumPartitions()
                best = min(best, time.perf_counter() - started)
            self.result.planning_s[count] = best
        for _ in range(rounds):
            self.measure(
                f"{MANY_QUEUES} queues", MANY_QUEUES * 10, lambda: self._scan(str(path), None)
            )

    def publish(self, rounds: int, message_count: int) -> None:
        """Measure the sink, into an nsqd of this repository on the same machine."""
        frame = (
            self._spark.read.format("nsq")
            .option("columns", "body")
            .load(str(self._directory / "data"))
            .limit(message_count)
            .repartition(2)
            .cache()
        )
        count = frame.count()
        for _ in range(rounds):
            with running(own_target("ours"), ["--mem-queue-size=100000000"]) as daemon:
                address = f"{daemon.tcp[0]}:{daemon.tcp[1]}"
                self.measure(
                    "sink",
                    count,
                    lambda: publish(frame, addresses=address, topic="t"),  # noqa: B023
                )
                depth = daemon.topic_stats("t")["depth"]
                if depth != count:
                    self.result.faults.append(f"sink: {depth} messages arrived of {count}")
        frame.unpersist()


def _children(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return
    for task in tasks:
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except FileNotFoundError:
            continue
        for child in children:
            yield from _children(int(child))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all below it, ended ones included."""
    ticks = 0
    for each in _children(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS_PER_S


def worker_rss_bytes(pid: int) -> int:
    """Return the most memory that one of Spark's Python workers ever had resident."""
    largest = 0
    for each in _children(pid):
        try:
            command = Path(f"/proc/{each}/cmdline").read_bytes()
            status = Path(f"/proc/{each}/status").read_text()
        except FileNotFoundError:
            continue
        if b"pyspark" in command and b"java" not in command.split(b"\0")[0] and each != pid:
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            largest = max(largest, int(peak.split()[1]) * 1024)
    return largest


def print_result(result: Result) -> None:
    """Print the table, and the goals of the figures."""
    print(f"{'':24}{'best s':>9}{'CPU s':>9}{'messages/s':>14}")
    for timing in result.timings.values():
        print(
            f"{timing.name:24}{timing.best_s:9.2f}{min(timing.cpu_seconds):9.2f}{timing.rate:14,.0f}"
        )
    print()
    for name, value, wanted in _judgements(result):
        print(f"{name:36}{value:>10}   ({wanted})")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{'load average at the end':36}{load:>10}   ({os.cpu_count()} cores)")
    for fault in result.faults:
        print(f"WRONG: {fault}")


def _judgements(result: Result) -> Iterator[tuple[str, str, str]]:
    """Return the figures: name, value, goal."""
    timings = result.timings
    if "text" in timings:
        bodies, text = timings["bodies"], timings["text"]
        yield "bodies, messages/s", f"{bodies.rate / 1e6:.2f} M", "at least 1.5 M"
        yield "bodies / text", f"{text.best_s / bodies.best_s:.2f}x", "at least 0.45x"
        for name in ("timestamp, attempts, id", "timestamp"):
            ratio = bodies.best_s / timings[name].best_s
            yield f"{name} / bodies", f"{ratio:.2f}x", "at least 1.5x"
    if "over HTTP" in timings:
        ratio = timings["local"].best_s / timings["over HTTP"].best_s
        yield "over HTTP / local", f"{ratio:.2f}x", "at least 0.6x"
    if "sink" in timings:
        yield "sink, messages/s", f"{timings['sink'].rate / 1e6:.2f} M", "at least 0.15 M"
    few, many = timings.get(f"{SEGMENT_COUNT} segments"), timings.get(f"{MANY_SEGMENTS} segments")
    if few and many:
        name = f"time of {MANY_SEGMENTS} / {SEGMENT_COUNT} segments"
        yield name, f"{many.best_s / few.best_s:.2f}x", "4x is linear"
    for segments, megabytes in result.worker_rss_mb.items():
        yield f"worker memory, {segments} segments", f"{megabytes:.0f} MB", "less than 400 MB"
    for count, seconds in result.planning_s.items():
        yield f"planning {count:,} queues", f"{seconds:.2f} s", "less than 2 s"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser("python -m bench.spark", description="Measure spark_jobs.")
    parser.add_argument("--rounds", type=int, default=5, help="how often each, default 5")
    parser.add_argument("--segment-mb", type=int, default=100, help="MiB per segment, default 100")
    parser.add_argument(
        "--only",
        default="scan,http,grow,queues,sink",
        help="some of scan,http,grow,queues,sink, with commas; default all",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    args = parser.parse_args(argv)
    parts = args.only.split(",")
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        directory = Path(name)
        count = write_segments(directory, args.segment_mb << 20)
        with open_session() as spark:
            bench = Bench(spark, directory, count)
            if "scan" in parts:
                bench.compare(args.rounds)
            if "http" in parts:
                bench.over_http(args.rounds)
            if "grow" in parts or "queues" in parts:
                bench.grow(max(args.rounds // 2, 1))
            if "queues" in parts:
                bench.many_queues(max(args.rounds // 2, 1))
            if "sink" in parts:
                messages = min(_SINK_MESSAGES, count * SEGMENT_COUNT)
                bench.publish(max(args.rounds // 2, 1), messages)
    print_result(bench.result)
    if args.json:
        args.json.write_text(json.dumps(asdict(bench.result), indent=1))
    return 1 if bench.result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
