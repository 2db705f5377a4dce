import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.history import FINE_STEP_S, SLOTS, History, shrink

START_S = 1_000_000 * FINE_STEP_S * 6


def make(*series: str) -> History[str]:
    return History(series or ("depth", "in"))


def test_points_come_back_in_order_with_their_times() -> None:
    history = make()
    for step in range(3):
        history.add("q", START_S + 5 * step, (step, step / 2))

    times, [depth, rate] = history.read("q", "10m", START_S + 10)

    assert times == [START_S, START_S + 5, START_S + 10]
    assert depth == [0, 1, 2]
    assert rate == [0, 0.5, 1]


def test_a_slow_round_stands_for_the_steps_before_it_and_a_silence_is_a_gap() -> None:
    history = make("depth")
    history.add("q", START_S, (1,))
    history.add("q", START_S + 30, (7,))
    history.add("q", START_S + 30 + 300, (9,))

    _, [depth] = history.read("q", "10m", START_S + 330)

    assert depth == [1, *[7] * 6, *[None] * 59, 9]


def test_the_last_point_is_the_last_round_until_a_silence() -> None:
    history = make("depth")
    history.add("q", START_S, (1,))
    history.add("q", START_S + 5, (2,))

    assert history.read("q", "10m", START_S + 35)[1] == [[1, 2]]
    assert history.read("q", "10m", START_S + 5 + 65)[1][0][-1] is None


def test_an_unknown_figure_is_a_gap() -> None:
    history = make()
    history.add("q", START_S, (1, None))
    history.add("q", START_S + 5, (2, 3.0))

    assert history.read("q", "10m", START_S + 5)[1] == [[1, 2], [None, 3.0]]


def test_the_hour_has_means_of_half_minutes() -> None:
    history = make("depth")
    for step in range(13):
        history.add("q", START_S + 5 * step, (step,))

    times, [depth] = history.read("q", "1h", START_S + 60)

    assert times == [START_S, START_S + 30]
    assert depth == [2.5, 8.5]


def test_a_queue_that_never_changes_costs_one_entry() -> None:
    history = make("depth")
    for step in range(2000):
        history.add("q", START_S + 5 * step, (4,))

    size_bytes = history.size_bytes
    times, [depth] = history.read("q", "10m", START_S + 5 * 1999)

    assert size_bytes < 1000
    assert depth == [4] * SLOTS
    assert len(times) == SLOTS


def test_the_past_of_a_queue_that_begins_to_change_is_kept() -> None:
    history = make("depth")
    for step in range(10):
        history.add("q", START_S + 5 * step, (4,))
    history.add("q", START_S + 50, (5,))

    assert history.read("q", "10m", START_S + 50)[1] == [[*[4] * 10, 5]]


def test_a_queue_that_rests_for_an_hour_gives_its_ring_back() -> None:
    history = make("depth", "latency")
    history.add("q", START_S, (1, None))
    for step in range(1, 800):
        history.add("q", START_S + 5 * step, (2, None))
    before = history.size_bytes

    history.fold()

    assert history.size_bytes < before / 5
    assert history.read("q", "10m", START_S + 5 * 799)[1][0] == [2] * SLOTS


def test_the_ring_forgets_what_is_older() -> None:
    history = make("depth")
    for step in range(300):
        history.add("q", START_S + 5 * step, (step,))

    times, [depth] = history.read("q", "10m", START_S + 5 * 299)

    assert depth == list(range(180, 300))
    assert times[-1] - times[0] == 5 * 119


def test_a_queue_that_comes_back_after_hours_has_no_old_points() -> None:
    history = make("depth")
    for step in range(800):
        history.add("q", START_S + 5 * step, (step,))
    back_s = START_S + 5 * 800 + 7200
    history.add("q", back_s, (1,))
    history.add("q", back_s + 60, (2,))

    _, [depth] = history.read("q", "1h", back_s + 90)
    assert max(value for value in depth if value is not None) <= 2


def test_an_unknown_name_has_no_points() -> None:
    assert make().read("q", "1h", START_S) == ([], [[], []])


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    history = make("depth")
    for time_s in (START_S, START_S + 5, START_S - 100_000, START_S, START_S + 10):
        history.add("q", time_s, (time_s,))

    assert len(history.read("q", "10m", START_S + 10)[1][0]) == 3


def test_the_idlest_lose_their_history_first() -> None:
    history = make("depth")
    for step in range(50):
        for name in ("busy", "idle"):
            is_moving = name == "busy" or step < 5
            history.add(name, START_S + 5 * step, (step if is_moving else 5,))
    both = history.size_bytes

    assert shrink([history], both) == 0
    assert shrink([history], both - 1) == 1
    assert history.read("idle", "10m", START_S + 250)[0] == []
    assert history.read("busy", "10m", START_S + 250)[0] != []


def test_names_that_are_gone_are_dropped_after_a_while() -> None:
    history = make("depth")
    history.add("old", START_S, (1,))
    history.add("kept", START_S, (1,))
    history.add("young", START_S + 100, (1,))

    history.keep_only({"kept": None}, START_S + 50)

    assert len(history) == 2
    assert history.read("old", "10m", START_S)[0] == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.one_of(st.none(), st.integers(0, 5).map(float)),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_any_rounds_give_what_a_plain_model_gives(rounds: list[tuple[int, float | None]]) -> None:
    history = make("depth")
    model: dict[int, float | None] = {}
    slot = START_S // FINE_STEP_S
    last: int | None = None
    for number, (gap, value) in enumerate(rounds):
        slot += gap if number else 0
        history.add("q", slot * FINE_STEP_S, (value,))
        is_filled = last is not None and slot - last <= 12
        for each in range(slot if last is None else last + 1, slot):
            model[each] = value if is_filled else None
        model[slot] = value
        last = slot

    times, [depth] = history.read("q", "10m", slot * FINE_STEP_S)

    seen = dict(zip((each // FINE_STEP_S for each in times), depth, strict=True))
    for each in range(slot - SLOTS + 1, slot + 1):
        assert seen.get(each) == model.get(each), each - slot


@pytest.mark.parametrize("range_name", ["10m", "1h"])
def test_reading_never_gives_more_than_a_ring(range_name: str) -> None:
    history = make("depth")
    for step in range(2000):
        history.add("q", START_S + 5 * step, (step,))

    times, [depth] = history.read("q", range_name, START_S + 10_000)

    assert len(times) == len(depth) <= SLOTS
