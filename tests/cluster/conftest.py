"""Clusters of real processes, one for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without any daemon yet."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()
