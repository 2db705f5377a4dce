"""`nsqd-spark`: the jobs on a Spark that runs on this machine; no spark-submit needed."""

import sys
from collections.abc import Sequence

from spark_jobs import missing_package


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    try:
        from spark_jobs.commands import run_command
    except ModuleNotFoundError as error:
        text = missing_package(error)
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        return 1
    return run_command(argv)


if __name__ == "__main__":
    sys.exit(main())
