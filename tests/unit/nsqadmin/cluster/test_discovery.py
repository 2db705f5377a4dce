from typing import Any, cast

import pytest

from nsqadmin.cluster.discovery import Discovery
from nsqadmin.cluster.upstream import Address, Upstream, UpstreamError

LOOKUPDS = [Address("a", 1), Address("b", 2)]


class FakeUpstream:
    """Answers by address and target."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, address: Address, target: str, *, is_node: bool = False) -> object:
        url = f"{address}{target.partition('&')[0]}"
        self.asked.append(url)
        if url not in self.answers:
            raise UpstreamError("connection refused")
        answer = self.answers[url]
        if isinstance(answer, UpstreamError):
            raise answer
        return answer


def make(answers: dict[str, Any], *, nsqds: tuple[Address, ...] = ()) -> Discovery:
    upstream = cast(Upstream, FakeUpstream(answers))
    return Discovery(upstream, lookupds=() if nsqds else LOOKUPDS, nsqds=nsqds)


def producer(name: str, peer: str = "p:9", **more: Any) -> dict[str, Any]:
    return {
        "remote_address": peer,
        "hostname": name,
        "broadcast_address": name,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        **more,
    }


async def test_nodes_are_the_union_and_know_who_knows_them() -> None:
    both = producer("n1", topics=["t", "u"], tombstones=[False, True])
    discovery = make(
        {
            "a:1/nodes": {"producers": [both, producer("n2")]},
            "a:1/topics": {"topics": ["t"]},
            "b:2/nodes": {"producers": [producer("n1", "q:8", topics=["t"], tombstones=[True])]},
            "b:2/topics": {"topics": []},
        }
    )

    answer = await discovery.find_nodes()

    first, second = answer.value
    assert (first.name, first.remote_addresses) == ("n1:4151", ["a:1/p:9", "b:2/q:8"])
    assert first.lookupds == LOOKUPDS
    assert first.topics == {"t": True, "u": True}
    assert second.lookupds == LOOKUPDS[:1]
    assert (answer.errors, answer.is_complete_failure) == ([], False)


async def test_one_nsqlookupd_that_fails_is_an_error_all_are_a_failure() -> None:
    answers = {"a:1/nodes": {"producers": []}, "a:1/topics": {"topics": ["t"]}}

    some = await make(answers).find_topics()
    none = await make({}).find_nodes()

    assert (some.value, some.errors) == (["t"], ["b:2: connection refused"])
    assert not some.is_complete_failure
    assert none.is_complete_failure
    assert len(none.errors) == 2


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {},
        producer("a b"),
        producer("a@b"),
        producer("x" * 300),
        {**producer("n"), "http_port": 0},
        {**producer("n"), "http_port": "4151"},
        {**producer("n"), "http_port": 70000},
        {**producer("n"), "tcp_port": None},
    ],
)
async def test_a_node_without_a_usable_address_is_left_out(entry: object) -> None:
    found = {"producers": [entry, producer("good")]}
    discovery = make({"a:1/nodes": found, "a:1/topics": {"topics": []}})

    assert [node.name for node in (await discovery.find_nodes()).value] == ["good:4151"]


@pytest.mark.parametrize("answer", [None, [], "x", {"producers": 5}])
async def test_an_nsqlookupd_that_answers_nonsense_is_an_error(answer: object) -> None:
    discovery = make({"a:1/nodes": answer, "a:1/topics": {"topics": []}})

    assert (await discovery.find_nodes()).is_complete_failure


async def test_an_unknown_topic_is_none_and_one_without_producers_is_empty() -> None:
    missing = UpstreamError("HTTP 404 TOPIC_NOT_FOUND", 404)
    answers = {"a:1/lookup?topic=t": missing, "b:2/lookup?topic=t": missing}
    assert (await make(answers).find_producers("t")).value is None

    answers |= {"b:2/lookup?topic=t": {"producers": []}}  # type: ignore[dict-item] # an answer
    assert (await make(answers).find_producers("t")).value == []


async def test_topics_that_no_node_has() -> None:
    hidden = producer("n", topics=["here", "hidden"], tombstones=[False, True])
    discovery = make(
        {
            "a:1/nodes": {"producers": [hidden]},
            "a:1/topics": {"topics": ["here", "hidden", "idle"]},
            "a:1/channels?topic=idle": {"channels": ["c"]},
            "a:1/channels?topic=hidden": {"channels": []},
        }
    )

    assert (await discovery.find_inactive()).value == {"hidden": [], "idle": ["c"]}


async def test_without_nsqlookupd_the_nodes_are_asked_themselves() -> None:
    address = Address("10.0.0.1", 4151)
    info = producer("n1") | {"extensions": ["peek", 5]}
    stats = {"topics": [{"topic_name": "t"}, {"topic_name": "<"}, 5]}
    discovery = make(
        {"10.0.0.1:4151/info": info, "10.0.0.1:4151/stats?format=json": stats}, nsqds=(address,)
    )

    [node] = (await discovery.find_nodes()).value

    assert (node.name, node.address) == ("n1:4151", address)
    assert node.remote_addresses is None
    assert node.extensions == frozenset({"peek"})
    assert (await discovery.find_topics()).value == ["t"]
    assert (await discovery.find_producers("u")).value is None
    assert (await discovery.find_inactive()).value == {}


async def test_since_when_nodes_are_hidden() -> None:
    entry = {"broadcast_address": "n", "http_port": 4151, "tombstoned": True, "tombstoned_at": 77}
    discovery = make({"a:1/debug": {"topic:t:": [entry, entry | {"tombstoned": False}, 5]}})

    assert await discovery.find_tombstones("t") == {"n:4151": 77}
