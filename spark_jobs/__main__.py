"""`nsqd-spark`: the jobs on a Spark that runs on this machine; no spark-submit needed."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job; return the exit code."""
    try:
        from spark_jobs.commands import run_command
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("pyspark", "pyarrow", "numpy", "py4j", "jinja2"):
            raise
        print(f"error: {package} is missing: pip install 'nsqd[spark]'", file=sys.stderr)
        return 1
    return run_command(argv)


if __name__ == "__main__":
    sys.exit(main())
