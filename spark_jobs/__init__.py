"""Spark over nsqd's queues: a data source, a stream, a sink, and jobs that use them.

source.py   the format nsq, made known by `register`
option_values.py, tls.py, object_store.py, hadoop_settings.py  what its options may say
read/       queues as rows: options, columns, batch and stream readers of files, and of a fleet
write/      rows as messages: the sink, the client that publishes; tally.py, counts of tasks
ship/       history copied to where it may grow; pace.py, at a rate
jobs/       what `nsqd-spark` does; run by commands.py, __main__.py, session.py
The door: `from spark_jobs import register, publish, read_corrupt_records, snapshot`. No module here
imports nsqd: a cluster needs this package, `diskqueue`, numpy, pyarrow; bundle.py zips the former.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jobs.source import read_corrupt_records, register, snapshot
    from spark_jobs.write.sink import publish

__all__ = ["publish", "read_corrupt_records", "register", "snapshot"]

_HOMES = {
    "publish": "spark_jobs.write.sink",
    "read_corrupt_records": "spark_jobs.source",
    "register": "spark_jobs.source",
    "snapshot": "spark_jobs.source",
}
_EXTRA = ("jinja2", "numpy", "py4j", "pyarrow", "pyspark")


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Say which package of the extra `spark` is not installed; None if the error is another."""
    package = (error.name or "").partition(".")[0]
    return f"{package} is missing: pip install 'nsqd[spark]'" if package in _EXTRA else None


def __getattr__(name: str) -> object:
    """Import a name of the door when it is used first: pyspark takes a second to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        text = missing_package(error)
        if text is None:
            raise
        raise ModuleNotFoundError(text, name=error.name) from error
