"""One Spark session for the whole run, on two cores of this machine."""

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before pyspark is imported: Spark must find this interpreter and no other network than loopback.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from spark_jobs import register
from tests.support.s3_server import S3Server, Store

# Starting a JVM on a busy machine takes its time.
TIMEOUT_S = 300
_PY4J_WARNINGS = (
    # py4j leaves its sockets to the garbage collector.
    (ResourceWarning, r"unclosed <socket.*"),
    (ResourceWarning, r"unclosed file.*"),
    # distutils and pandas internals that pyspark still uses.
    (DeprecationWarning, r".*"),
    (FutureWarning, r".*"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_xdist = config.pluginmanager.hasplugin("xdist")
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if has_xdist:
                # With --dist loadgroup one worker gets them all, and so there is one session.
                item.add_marker(pytest.mark.xdist_group("spark"))
            for category, text in _PY4J_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{text}:{category.__name__}"))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The only object store of a run."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def store(s3_server: S3Server) -> Store:
    """An empty bucket."""
    return s3_server.make_store()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the format nsq registered."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.fail("Spark needs Java 17 or newer, and there is no java: run `make java`")
    scratch = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.streaming.ui.enabled", "false")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
