"""Hadoop's settings as a job finds them before Spark is there: jobs look at the queues first.

The same places in which Spark looks for them, the first that has a value first: the running
session; what spark-submit was given; `spark.hadoop.*` in spark-defaults.conf; core-site.xml.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

_PREFIX = "spark.hadoop."
_MAX_FILE_BYTES = 16 * 1024 * 1024
# `name value`, `name=value` or `name: value`, as in Java's files of properties.
_PROPERTY = re.compile(r"\s*([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*?)\s*")

Get = Callable[[str], str | None]


def find_settings(environment: Mapping[str, str] = os.environ) -> Get:
    """Return a function that gives the value of one of Hadoop's settings, None if nothing sets it.

    Raises:
        ValueError: a file of settings cannot be read.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return session_settings(running)
    given: Mapping[str, str] = {}
    if "PYSPARK_GATEWAY_PORT" in environment:
        # spark-submit has started the JVM, which knows what its --conf said.
        SparkContext._ensure_initialized()  # noqa: SLF001 - SparkConf alone does not connect
        given = dict(SparkConf().getAll())
    else:
        given = _read_defaults(environment)
    site = _read_core_site(environment)
    return lambda name: given.get(_PREFIX + name, site.get(name))


def session_settings(spark: SparkSession) -> Get:
    """Return the same for a session: its own settings, or those that Spark was started with."""

    def get(name: str) -> str | None:
        for key in (name, _PREFIX + name):
            text = spark.conf.get(key, None)
            if text is not None:
                return text
        # Files such as core-site.xml are known to Java alone; Spark Connect has none.
        java = getattr(spark, "_jsc", None)
        return None if java is None else java.hadoopConfiguration().get(name)

    return get


def _read_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    directory = environment.get("SPARK_CONF_DIR")
    home = environment.get("SPARK_HOME")
    if directory is None and home is not None:
        directory = f"{home}/conf"
    if directory is None:
        return {}
    text = _read(Path(directory, "spark-defaults.conf"))
    matches = (_PROPERTY.fullmatch(line) for line in (text or "").splitlines())
    return {match[1]: match[2] for match in matches if match is not None}


def _read_core_site(environment: Mapping[str, str]) -> dict[str, str]:
    directory = environment.get("HADOOP_CONF_DIR")
    if directory is None:
        return {}
    path = Path(directory, "core-site.xml")
    text = _read(path)
    if text is None:
        return {}
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is no XML: {error}") from None
    found = {}
    for each in root.iter("property"):
        name, value = each.findtext("name"), each.findtext("value")
        if name and value is not None:
            found[name.strip()] = value.strip()
    return found


def _read(path: Path) -> str | None:
    """Return the text of a file; None if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot read Hadoop's settings: {error.strerror}: {path}") from None
