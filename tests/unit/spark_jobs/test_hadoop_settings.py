"""Hadoop's settings, from the files in which Spark would find them."""

from pathlib import Path

import pytest

from spark_jobs.__main__ import main
from spark_jobs.hadoop_settings import find_settings

SITE = """<?xml version="1.0"?>
<configuration>
  <property><name> fs.s3a.endpoint </name><value>minio:9000</value></property>
  <property><name>fs.s3a.endpoint.region</name><value>eu-1</value><final>true</final></property>
  <property><name>half</name></property>
</configuration>
"""
DEFAULTS = """
# a comment
spark.master               local[2]
spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:9000
spark.hadoop.fs.s3a.access.key: key
  spark.hadoop.fs.s3a.secret.key   with = and : in it
"""


def test_files_of_spark_come_before_those_of_hadoop(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    (tmp_path / "core-site.xml").write_text(SITE)

    get = find_settings({"SPARK_HOME": str(tmp_path), "HADOOP_CONF_DIR": str(tmp_path)})

    assert get("fs.s3a.endpoint") == "http://127.0.0.1:9000"
    assert get("fs.s3a.endpoint.region") == "eu-1"
    assert get("fs.s3a.access.key") == "key"
    assert get("fs.s3a.secret.key") == "with = and : in it"
    assert get("half") is None
    alone = find_settings({"SPARK_CONF_DIR": str(tmp_path / "none"), "SPARK_HOME": str(tmp_path)})
    assert alone("fs.s3a.endpoint") is None


def test_a_file_that_is_no_xml_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    assert main(["count", str(tmp_path)]) == 1

    assert f"{tmp_path}/core-site.xml is no XML: " in capsys.readouterr().err
