"""nsqd as a process of its own, to be killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Processes that are killed at the end."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()
