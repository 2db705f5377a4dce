"""The Spark session of a job: spark-submit's, or one of its own on this machine."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from spark_jobs.bundle import write_bundle
from spark_jobs.source import register

DEFAULT_MASTER = "local[*]"
DEFAULT_MEMORY = "1g"
_SHUFFLE_PARTITIONS = "8"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_LOOPBACK = "127.0.0.1"
_MIN_JAVA = 17
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_NEEDS_JAVA = (
    f"Spark needs Java {_MIN_JAVA} or newer. Install it (Debian: apt-get install"
    " openjdk-17-jre-headless, macOS: brew install openjdk@17), or set JAVA_HOME to where it is"
)


class JobError(Exception):
    """Raised when the user of a job can mend it; shown in one line, without a traceback."""


@contextmanager
def open_session(
    app_name: str, *, master: str | None = None, memory: str = DEFAULT_MEMORY
) -> Iterator[SparkSession]:
    """Open a session with the format nsq and stop it at the end; a running one is left running.

    Master and memory are not used under spark-submit, which sets them itself.

    Raises:
        JobError: there is no Java, or Spark did not start.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    is_submitted = _is_submitted()
    builder = SparkSession.builder.appName(app_name)
    if not is_submitted:
        _require_java()
        builder = _configure(builder, master or DEFAULT_MASTER, memory)
    try:
        spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    except PySparkRuntimeError as error:
        raise JobError(f"Spark did not start: {error}. {_NEEDS_JAVA}") from error
    try:
        register(spark)
        if not is_submitted and not (master or DEFAULT_MASTER).startswith("local"):
            _ship_code(spark)
        yield spark
    finally:
        with suppress(ConnectionError):  # when the JVM went first, at Ctrl-C
            spark.stop()


def is_local_session(master: str | None) -> bool:
    """Tell whether `open_session` runs everything on this machine."""
    return not _is_submitted() and (master or DEFAULT_MASTER).startswith("local")


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _configure(builder: SparkSession.Builder, master: str, memory: str) -> SparkSession.Builder:
    """Set up a session on this machine, or with a master that the user names."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        # The jobs show it themselves, see spark_jobs.jobs.progress.
        "spark.ui.showConsoleProgress": "false",
        # 200, Spark's own choice for a cluster, are mostly empty here.
        "spark.sql.shuffle.partitions": _SHUFFLE_PARTITIONS,
    }
    if "SPARK_CONF_DIR" not in os.environ:
        # A user's own directory of settings has a file for logs.
        settings["spark.driver.extraJavaOptions"] = f'-Dlog4j2.configurationFile="{_LOG_SETTINGS}"'
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        settings["spark.driver.host"] = _LOOPBACK
        # From the Python workers to the JVM: saves a tenth of the time of a scan.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master(master)


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise JobError(f"no Java found. {_NEEDS_JAVA}")
    version = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    if version.returncode != 0:
        raise JobError(f"{java} does not run: {version.stderr.strip()[:200]}. {_NEEDS_JAVA}")
    # Version 8 called itself 1.8.
    found = _JAVA_VERSION.search(version.stderr + version.stdout)
    if found is not None and int(found[1]) < _MIN_JAVA:
        raise JobError(f"{java} is Java {found[1]}. {_NEEDS_JAVA}")


def _ship_code(spark: SparkSession) -> None:
    """Send this package to executors on other machines, which do not have it."""
    with tempfile.TemporaryDirectory() as directory:
        bundle = Path(directory) / "nsqd_spark.zip"
        write_bundle(bundle)
        # Copied to Spark's own directory at once.
        spark.sparkContext.addPyFile(str(bundle))
