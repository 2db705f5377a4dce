"""Running nodes, read over HTTP."""

import json
from pathlib import Path

import pytest

from spark_jobs.__main__ import main
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.fleet.lookup import find_nodes
from spark_jobs.read.fleet.options import FleetOptions
from tests.support.daemon_process import LOOKUPD, DaemonProcess, WaitingDaemon
from tests.support.waiting import wait_until

NOWHERE = "127.0.0.1:1"


def test_nsqlookupd_knows_the_nodes(tmp_path: Path) -> None:
    with WaitingDaemon(tmp_path / "lookupd", command=LOOKUPD) as lookupd:
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        options = FleetOptions(lookupd=(NOWHERE, lookupd.http_address), retry_count=0)
        with pytest.raises(
            NodeError, match=r"knows no nsqd: node 127\.0\.0\.1:1 cannot be reached"
        ):
            find_nodes(options)
        with DaemonProcess(tmp_path / "nsqd", flag) as nsqd:
            wait_until(lambda: json.loads(lookupd.request("GET", "/nodes"))["producers"])

            assert find_nodes(options) == [f"http://{nsqd.http_address}"]


def test_a_node_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with WaitingDaemon(tmp_path, command=LOOKUPD) as other:
        assert main(["count", "--nsqd", other.http_address]) == 1

    printed = capsys.readouterr().err
    assert (
        f"error: node {other.http_address}: 404 NOT_FOUND: it does not serve its queues" in printed
    )
