"""Files that are damaged in any place: no message is wrong, and none lost that is still there.

`make damage` does so for more seeds.
"""

from pathlib import Path

import pytest

from tests.support.disk_damage import play


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_damage_in_any_place_makes_no_message_wrong_and_loses_none_that_is_there(
    tmp_path: Path, first: int
) -> None:
    outcomes = [play(tmp_path / str(seed), seed) for seed in range(first, first + 20)]

    assert [outcome for outcome in outcomes if outcome.problems] == []
    assert sum(outcome.is_changed for outcome in outcomes) > 15
    assert sum(outcome.held_count for outcome in outcomes) > 0
