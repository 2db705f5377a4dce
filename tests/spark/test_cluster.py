"""A job on a standalone cluster of a master and two workers, its code shipped with --py-files.

`tests/unit/spark_jobs/test_bundle.py` renders a report out of the same zip.
"""

import contextlib
import json
import os
import re
import signal
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_jobs.__main__ import main
from tests.spark.data_dirs import Row, messages, read_plainly, write_queue
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 480
TOPICS = 400
MESSAGES = 250
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


def environment(scratch: Path) -> dict[str, str]:
    """Loopback only, small JVMs, and a Python that has pyarrow but not this repository."""
    python = scratch / "python"
    # The same pyspark as that of the JVMs, which may not be the installed one (make test-spark).
    packages = f"{SPARK_HOME.parent}:{site.getsitepackages()[0]}"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{packages}:$PYTHONPATH"\nexec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    return inherited | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }


class ClusterProcess:
    """A master or a worker; ended with the test."""

    def __init__(self, scratch: Path, name: str, *arguments: str) -> None:
        self._log_path = scratch / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=scratch,
                env=environment(scratch),
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that a kill takes its executors, too
            )

    def wait_for(self, pattern: str) -> str:
        """Wait for a line of the log; return the pattern's last group."""

        def find() -> re.Match[str] | None:
            log = self._log_path.read_text(errors="replace")
            match = re.search(pattern, log)
            assert match is not None or self._process.poll() is None, log
            return match

        match = wait_until(find)
        return match[match.lastindex or 0]

    def kill(self) -> None:
        """Kill it, and with a worker its executors, as when their machine dies."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def end(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
            return
        self._process.kill()
        self._process.wait(20)


@dataclass(frozen=True)
class Cluster:
    """A running cluster with one core on each of two workers."""

    url: str
    workers: list[ClusterProcess]

    def submit(self, scratch: Path, bundle: Path, *arguments: str) -> "subprocess.Popen[str]":
        """Start a job: the module of `spark_jobs.jobs`, then its arguments."""
        job, *rest = arguments
        return subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-submit"),
                *("--master", self.url, "--driver-memory", "512m", "--executor-memory", "512m"),
                *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
                *("--conf", "spark.sql.shuffle.partitions=2", "--py-files", str(bundle)),
                str(REPOSITORY / "spark_jobs" / "jobs" / job),
                *rest,
            ],
            cwd=scratch,
            env=environment(scratch),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    processes = []
    try:
        master = ClusterProcess(
            tmp_path,
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        )
        processes.append(master)
        url = master.wait_for(_MASTER_URL.pattern)
        workers = [
            ClusterProcess(
                tmp_path,
                f"worker{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "700m"),
                *("--work-dir", str(tmp_path / f"work{number}"), url),
            )
            for number in (1, 2)
        ]
        processes += workers
        for worker in workers:
            worker.wait_for(_REGISTERED)
        yield Cluster(url, workers)
    finally:
        for process in reversed(processes):
            process.end()


def test_a_job_on_a_cluster_gives_what_a_plain_read_gives(cluster: Cluster, tmp_path: Path) -> None:
    data, output, bundle = tmp_path / "node1", tmp_path / "result", tmp_path / "nsqd_spark.zip"
    for number in range(130):  # enough for a partition on each worker
        parts = [messages(number * 100, 5), messages(number * 100 + 5, 4)]
        write_queue(data, f"topic{number:03d}", parts, read=(0, 50 * (number % 5)))
    assert main(["bundle", str(bundle)]) == 0
    query = (
        "SELECT topic, channel, segment, offset, timestamp_ns, attempts, id, text"
        " FROM messages WHERE node = 'node1'"
    )

    job = cluster.submit(
        tmp_path,
        bundle,
        *("sql.py", str(data), query, "--format", "json", "--output", str(output)),
    )
    printed, errors = job.communicate(timeout=PATIENCE_S)

    assert job.returncode == 0, errors[-5000:]
    lines = [line for part in output.glob("part-*") for line in part.read_text().splitlines()]
    found = sorted(map(_row, map(json.loads, lines)), key=_place)
    expected = sorted(read_plainly(data), key=_place)
    assert found == expected
    # spark-submit merges Python's stderr into its stdout.
    steps = [line for line in printed.splitlines() if " s] " in line]
    assert steps[-1].endswith(f"{len(expected):,} rows written to {output}"), steps
    # Both executors were there, and each has a directory with the shipped code.
    executors = [path for path in tmp_path.glob("work*/app-*/*") if path.is_dir()]
    assert len(executors) == 2
    assert all((path / bundle.name).exists() for path in executors)


def test_a_worker_dies_while_it_reads_a_running_node(cluster: Cluster, tmp_path: Path) -> None:
    bundle = tmp_path / "nsqd_spark.zip"
    assert main(["bundle", str(bundle)]) == 0
    with DaemonProcess(tmp_path / "nsqd") as node:
        for number in range(TOPICS):  # some partitions for each worker
            bodies = [f"{number} {index}".encode() for index in range(MESSAGES)]
            node.request("POST", f"/mpub?topic=topic{number:03d}", b"\n".join(bodies))
        query = "SELECT count(*), count(DISTINCT id), count(DISTINCT body) FROM messages"

        job = cluster.submit(tmp_path, bundle, "sql.py", "--nsqd", node.http_address, query)
        wait_until(lambda: " GET /segments/" in node.log or job.poll() is not None)
        is_at_work = job.poll() is None
        cluster.workers[0].kill()
        printed, errors = job.communicate(timeout=PATIENCE_S)
        leases = json.loads(node.request("GET", "/snapshot"))["leases"]

    assert is_at_work
    assert job.returncode == 0, errors[-5000:]
    [counts] = [line.split() for line in printed.splitlines() if re.fullmatch(r"[\d ]+", line)]
    assert counts == [str(TOPICS * MESSAGES)] * 3
    assert leases == []
    # It had an executor, which had begun.
    assert list(tmp_path.glob("work1/app-*/*/nsqd_spark.zip"))


def _row(values: dict[str, Any]) -> Row:
    body, message_id = values.pop("text").encode(), values.pop("id")
    return Row(channel=None, body=body, message_id=message_id, **values)


def _place(row: Row) -> tuple[str, int, int]:
    return row.topic, row.segment, row.offset
