"""Without the extra `spark` the command says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "jinja2"])
def test_the_extra_is_named(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None;"
        "from spark_jobs.__main__ import main; sys.exit(main(['sql', 'x', 'SELECT 1']))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.stderr == f"error: {module} is missing: pip install 'nsqd[spark]'\n"
    assert done.returncode == 1
