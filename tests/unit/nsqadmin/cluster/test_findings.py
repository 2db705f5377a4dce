from typing import Any

from nsqadmin.cluster.discovery import LookupdState, Producer
from nsqadmin.cluster.figures import Sample
from nsqadmin.cluster.findings import MAX_FINDINGS, Findings
from nsqadmin.cluster.merge import COLUMNS, Row
from nsqadmin.cluster.upstream import Address
from nsqadmin.cluster.view import Node, NodeStatus, View

LOOKUPDS = [Address("a", 4161), Address("b", 4161)]


def make_node(name: str, **figures: Any) -> Node:
    producer = Producer(Address(name, 4151), name, 4151, 4150, lookupds=list(LOOKUPDS))
    sample = Sample(1.0, version="1.3.0", health="OK")
    for key, value in figures.items():
        setattr(sample, key, value)
    return Node(f"{name}:4151", producer, NodeStatus.UP, sample, error=None)


def make_row(**figures: Any) -> Row:
    nothing: dict[str, Any] = dict.fromkeys(COLUMNS[2:], 0)
    return tuple((nothing | {"nodes": 1} | figures).values())


def make_view(*nodes: Node, rows: dict[tuple[str, str], Row] | None = None) -> View:
    view = View(seq=1, time_ms=1000, at=0.0, has_round=True)
    view.nodes = {node.name: node for node in nodes}
    view.lookupds = [LookupdState(address) for address in LOOKUPDS]
    view.merged.rows = rows or {}
    return view


def find(view: View) -> dict[str, Any]:
    Findings().update(view, lookupd_count=2)
    return {finding.kind: finding for finding in view.findings}


def test_a_healthy_cluster_has_none() -> None:
    rows = {("t", ""): make_row(channels=1), ("t", "c"): make_row(depth=5, clients=1, out_rate=3)}

    assert find(make_view(make_node("n"), rows=rows)) == {}


def test_a_channel_that_grows_without_consumer() -> None:
    rows = {("t", "c"): make_row(depth=120_431, in_rate=812.0)}

    [finding] = find(make_view(rows=rows)).values()

    assert (finding.kind, finding.topic, finding.channel) == ("no_consumer", "t", "c")
    assert finding.text == "t/c grows: 120,431 waiting, no consumer"
    assert finding.hint


def test_queues_that_nobody_reads() -> None:
    rows = {
        ("a", ""): make_row(depth=3),
        ("b", "c"): make_row(depth=3, clients=2, out_rate=0.0),
        ("d", "e"): make_row(paused=1, nodes=3),
    }

    found = find(make_view(rows=rows))

    assert set(found) == {"no_channel", "consumers_not_ready", "paused_differs"}
    assert found["paused_differs"].text == "d/e is paused on 1 of 3 nodes"


def test_a_node_whose_name_does_not_resolve_has_the_hint() -> None:
    node = make_node("n")
    node.status, node.error = NodeStatus.STALE, "no such host"

    finding = find(make_view(node))["node_unreachable"]

    assert finding.severity == "error"
    assert "--broadcast-address" in finding.hint


def test_nodes_that_are_gone_unhealthy_draining_full_or_older() -> None:
    gone = make_node("g")
    gone.status = NodeStatus.GONE
    sick = make_node("s", health="NOK - disk is full", version="1.2.1", disk_free_bytes=1 << 20)

    found = find(make_view(gone, sick, make_node("d", is_draining=True)))

    assert set(found) == {
        *("node_gone", "node_unhealthy", "node_draining", "versions_mixed", "disk_low")
    }
    assert found["disk_low"].text == "s:4151 has 1 MiB of disk left"


def test_a_node_that_one_nsqlookupd_does_not_know() -> None:
    node = make_node("n")
    node.producer.lookupds = LOOKUPDS[:1]

    assert (
        find(make_view(node))["unknown_to_lookupd"].text == "n:4151 is not registered with b:4161"
    )


def test_nsqlookupds_that_do_not_answer() -> None:
    view = make_view(make_node("n"))
    view.lookupds[1].error = "connection refused"
    view.nodes["n:4151"].producer.lookupds = LOOKUPDS[:1]
    assert set(find(view)) == {"lookupd_unreachable"}

    view.lookupds[0].error = "timed out"
    assert set(find(view)) == {"lookupd_unreachable", "discovery_failed"}


def test_a_finding_remembers_since_when() -> None:
    findings = Findings()
    view = make_view(rows={("a", ""): make_row(depth=3)})
    for time_ms in (1000, 9000):
        view.time_ms = time_ms
        findings.update(view, lookupd_count=2)

    assert view.findings[0].since_ms == 1000
    assert view.findings[0].as_json()["topic"] == "a"


def test_findings_are_bounded_and_the_worst_come_first() -> None:
    node = make_node("n", health="NOK")
    rows = {(f"t{number}", ""): make_row(depth=1) for number in range(500)}
    view = make_view(node, rows=rows)

    find(view)

    assert len(view.findings) == MAX_FINDINGS
    assert view.more_findings == 501 - MAX_FINDINGS
    assert view.findings[0].kind == "node_unhealthy"
