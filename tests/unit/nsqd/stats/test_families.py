"""The table of metrics: names, kinds, and how values of topics that share a row are merged."""

import re

import pytest

from nsqd.stats.families import ARCHIVE_FAMILIES, CHANNEL_FAMILIES, TOPIC_FAMILIES, Family
from tests.support.snapshots import topic_stats

ALL = (*TOPIC_FAMILIES, *ARCHIVE_FAMILIES, *CHANNEL_FAMILIES)


def find(name: str) -> Family:
    [family] = [family for family in ALL if family.name == name]
    return family


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    names = [family.name for family in ALL]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"nsqd_(topic|channel)_[a-z_]+", name) for name in names)
    assert not any(name.endswith("_total") for name in names)


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.name)
def test_only_counters_have_total_in_the_names_of_their_samples(family: Family) -> None:
    assert family.kind in ("counter", "gauge")
    assert family.sample_name.endswith("_total") == (family.kind == "counter")
    assert family.help_text.endswith(".")


def test_counts_are_added_and_of_limits_the_strictest_counts() -> None:
    assert find("nsqd_topic_messages").merge(2, 3) == 5
    for name in ("nsqd_topic_max_depth", "nsqd_topic_archive_oldest_timestamp_seconds"):
        merge = find(name).merge
        assert (merge(2, 3), merge(3, 2), merge(0, 3), merge(3, 0), merge(0, 0)) == (2, 2, 3, 3, 0)


def test_a_topic_without_history_has_zeros() -> None:
    topic = topic_stats("t#ephemeral")

    assert [read(topic) for family in ARCHIVE_FAMILIES for _, read in family.samples] == [0] * 5
