"""What keys do to the view of `nsq top`."""

import pytest

from nsqd.cli.figures import Figures
from nsqd.cli.watch.rows import Key, Row
from nsqd.cli.watch.view import SORTS, Mode, Order, View


def row(name: str, depth: int, rate: float = 0.0) -> Row:
    topic, _, channel = name.partition("/")
    figures = Figures.add_up(name, [{"depth": depth}], 0.0)
    return Row(Key(topic, channel), figures, rate, rate, float(depth), (depth,))


@pytest.fixture
def view() -> View:
    """Three queues."""
    made = View()
    made.set_rows([row("a/x", 1, 5), row("b/y", 3), row("ab", 2, 9)])
    return made


def names(view: View) -> list[str]:
    return [each.key.name for each in view.rows]


def press(view: View, *keys: str) -> Order | None:
    found = None
    for key in keys:
        found = view.press(key)
    return found


def test_rows_are_sorted_and_the_order_goes_round(view: View) -> None:
    assert names(view) == ["b/y", "ab", "a/x"]
    press(view, "s")
    assert names(view) == ["ab", "a/x", "b/y"]
    press(view, *["s"] * (len(SORTS) - 1))
    assert view.sort == "depth"


def test_a_filter_is_typed_and_taken_back(view: View) -> None:
    press(view, "/", "a", "b", "backspace", "p", "backspace", "enter")
    assert (names(view), view.mode) == (["ab", "a/x"], Mode.LIST)
    press(view, "/", "q", "escape")
    assert (len(view.rows), view.is_over) == (3, False)


def test_the_selection_stays_with_its_queue(view: View) -> None:
    press(view, "down")
    view.set_rows([row("ab", 9), row("a/x", 1), row("b/y", 3)])
    assert view.find_selected() == 0
    press(view, "up", "up")
    assert view.selected == Key("ab")
    press(view, "j", "j", "j", "j", "k")
    assert view.selected == Key("b", "y")


@pytest.mark.parametrize(("key", "action"), [("p", "pause"), ("u", "unpause"), ("e", "empty")])
def test_a_change_is_made_only_after_y(view: View, key: str, action: str) -> None:
    assert press(view, key) is None
    assert view.question() == f"{action} b/y with 3 messages? y/N"
    for other in ("enter", "n", key, "escape", "q", "ctrl-c"):
        assert press(view, other) is None
        assert view.message == "nothing was changed"
        press(view, key)
    assert press(view, "y") == Order(action, Key("b", "y"))
    assert press(view, "y") is None


def test_the_question_is_about_the_row_that_was_selected(view: View) -> None:
    press(view, "e")
    view.set_rows([row("other", 99), row("b/y", 4)])

    assert view.question() == "empty b/y with 4 messages? y/N"
    assert press(view, "y") == Order("empty", Key("b", "y"))


def test_a_read_only_context_is_not_changed(view: View) -> None:
    locked = View(is_read_only=True)
    locked.set_rows(view.rows)

    assert press(locked, "e", "y") is None
    assert locked.mode is Mode.LIST
    assert press(View(), "e", "y") is None  # without rows


@pytest.mark.parametrize("key", ["q", "ctrl-c"])
def test_it_ends(view: View, key: str) -> None:
    press(view, key)
    assert view.is_over
