"""Without the extra `spark`, the command and the package's door name the extra to install."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "from spark_jobs.__main__ import main; sys.exit(main(['sql', 'x', 'SELECT 1']))"


def run(program: str, *, missing: str) -> subprocess.CompletedProcess[str]:
    """Run a program that cannot import a package."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{missing!r}] = None; {program}"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "jinja2"])
def test_the_command_names_the_extra(package: str) -> None:
    done = run(COMMAND, missing=package)

    assert done.stderr == f"error: {package} is missing: pip install 'nsqd[spark]'\n"
    assert done.returncode == 1


@pytest.mark.parametrize("name", ["register", "publish", "read_corrupt_records"])
def test_the_door_names_the_extra(name: str) -> None:
    done = run(f"from spark_jobs import {name}", missing="pyspark")

    last = done.stderr.splitlines()[-1]
    assert last == "ModuleNotFoundError: pyspark is missing: pip install 'nsqd[spark]'"


def test_another_missing_module_is_named_as_it_is() -> None:
    done = run(COMMAND, missing="diskqueue")

    assert "ModuleNotFoundError" in done.stderr.splitlines()[-1]
    assert "nsqd[spark]" not in done.stderr


def test_the_package_itself_needs_no_spark() -> None:
    done = run("import spark_jobs; spark_jobs.nothing", missing="pyspark")

    assert done.stderr.splitlines()[-1] == (
        "AttributeError: module 'spark_jobs' has no attribute 'nothing'"
    )
