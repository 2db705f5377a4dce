"""The zip for a cluster has everything that a job needs, templates included."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import diskqueue
import nsqd
import spark_jobs
from spark_jobs.bundle import write_bundle

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
from datetime import UTC, datetime
from spark_jobs.jobs import report_page
from spark_jobs.jobs.report_figures import Report
from spark_jobs.write import publisher
assert sys.argv[1] in publisher.client_wire.__file__
assert sys.argv[1] in report_page.__file__, report_page.__file__
print(report_page.render(Report(["/data"], "backlog", datetime.now(UTC))))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "nsqd_spark.zip"
    write_bundle(path)
    return path


def test_every_file_of_its_packages_is_in_it(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())

    for package in (diskqueue, nsqd, spark_jobs):
        assert package.__file__ is not None
        root = Path(package.__file__).parent
        files = {str(path.relative_to(root.parent)) for path in root.rglob("*") if path.is_file()}
        missing = {name for name in files - names if "__pycache__" not in name}
        assert missing == set()
    assert not any("__pycache__" in name for name in names)


def test_a_report_is_rendered_out_of_the_zip(bundle: Path, tmp_path: Path) -> None:
    libraries = sysconfig.get_path("purelib")

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(bundle), libraries],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "There are no messages." in done.stdout
    assert "prefers-color-scheme" in done.stdout
