"""Without a Java that Spark can use, a job names the package to install."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.__main__ import main


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have one, which would be used."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)


def make_java(directory: Path, script: str) -> Path:
    """A JAVA_HOME whose java is a shell script."""
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return directory


def run(capsys: pytest.CaptureFixture[str], data: Path) -> str:
    """Run a job that fails; return its error."""
    assert main(["sql", str(data), "SELECT 1"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0].endswith("reading 0 nodes, 0 topics, 0 queues, 0 segments, 0 B")
    [line] = told[1:]
    assert "Install it (Debian: apt-get install openjdk-17-jre-headless" in line
    return line


def test_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert run(capsys, tmp_path).startswith("error: no Java found. Spark needs Java 17 or newer.")


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo broken >&2; exit 1", "does not run: broken."),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11."),
        ("echo 'java version \"1.8.0_292\"' >&2", "is Java 8."),
    ],
)
def test_a_java_that_is_of_no_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    text: str,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path, script)))

    assert text in run(capsys, tmp_path)


def test_a_java_home_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    assert run(capsys, tmp_path).startswith("error: no Java found.")
