"""The rules of `nsq doctor`."""

from email.utils import formatdate
from typing import Any

from nsqd.cli.cluster import Outcome
from nsqd.cli.watch.findings import Facts, find_all

NOW_S = 1_800_000_000.0


def stats(*channels: dict[str, Any], **members: Any) -> dict[str, Any]:
    topic = {"topic_name": "t", "depth": 0, "channels": list(channels)}
    return {"version": "1.3.0", "health": "OK", "topics": [{**topic, **members}]}


def channel(**members: Any) -> dict[str, Any]:
    return {"channel_name": "c", "depth": 0, "client_count": 1, **members}


def found(**given: Any) -> list[tuple[str, str, str]]:
    findings = find_all(Facts(now_s=NOW_S, **given))
    return [(each.level, each.where, each.text) for each in findings]


def test_nothing_is_wrong_with_a_quiet_cluster() -> None:
    good = Outcome("a", stats(channel()), date=formatdate(NOW_S + 2, usegmt=True))

    assert (
        found(stats=[good], later=[good], metrics=[Outcome("a", "nsqd_disk_free_bytes 9e9\n")])
        == []
    )


def test_servers_that_do_not_answer() -> None:
    assert found(
        lookupds=[Outcome("l", error="refused")],
        stats=[Outcome("a", error="slow")],
        tcp_errors={"b": "no route"},
    ) == [
        ("problem", "l", "does not answer: refused"),
        ("problem", "a", "does not answer: slow"),
        ("problem", "b", "its TCP address cannot be reached from here: no route"),
    ]


def test_lookupds_that_disagree_and_tombstones() -> None:
    one = {"broadcast_address": "h", "tcp_port": 1, "http_port": 2}
    dead = {**one, "topics": ["x", "y"], "tombstones": [False, True]}
    lookupds = [
        Outcome("l1", {"producers": [dead]}),
        Outcome("l2", {"data": {"producers": []}}),
        Outcome("l3", "nonsense"),
    ]

    assert found(lookupds=lookupds) == [
        ("problem", "l2", "does not know h:2"),
        ("problem", "l3", "does not know h:2"),
        ("note", "h:2", "tombstoned for y"),
    ]


def test_clocks_and_versions_and_health() -> None:
    ahead = Outcome("a", stats(), date=formatdate(NOW_S + 60, usegmt=True))
    sick = Outcome("b", {**stats(), "version": "1.2.1", "health": "NOK - x"}, date="nonsense")

    assert found(stats=[ahead, sick]) == [
        ("problem", "a", "its clock is 60 s ahead"),
        ("problem", "b", "NOK - x"),
        ("note", "versions", "the nodes differ: 1.3.0: a; 1.2.1: b"),
    ]


def test_disks_and_certificates() -> None:
    text = "nsqd_disk_free_bytes 1.5e+08\nnsqd_sync_failures_total 2.0\n"

    assert found(metrics=[Outcome("a", text)], certificate_days={"a": 3.2, "b": 90, "c": -1}) == [
        ("problem", "a", "150.0 MB of its disk are free"),
        ("problem", "a", "2 syncs to disk have failed"),
        ("problem", "a", "its certificate ends in 3 days"),
        ("problem", "c", "its certificate has ended"),
    ]


def test_queues_that_nobody_reads() -> None:
    unread = stats(channel(depth=5, client_count=0))
    read = stats(channel(depth=5, client_count=1))

    assert found(stats=[Outcome("a", unread)]) == [("problem", "t/c", "5 messages and no consumer")]
    assert found(stats=[Outcome("a", unread), Outcome("b", read)]) == []
    assert found(stats=[Outcome("a", stats(depth=1))]) == [
        ("problem", "t", "1 message and no channel")
    ]
    assert found(stats=[Outcome("a", stats(channel(depth=2, client_count=0, paused=True)))]) == [
        ("note", "t/c", "2 messages and it is paused")
    ]


def test_timeouts_that_rise() -> None:
    before, later = stats(channel(timeout_count=4)), stats(channel(timeout_count=6))

    assert found(stats=[Outcome("a", before)], later=[Outcome("a", later)]) == [
        ("problem", "t/c", "2 messages timed out while we looked: consumers are too slow")
    ]
    assert found(stats=[Outcome("a", later)], later=[Outcome("a", before)]) == []
