"""How `nsq top` looks: within its width and height, whatever names there are."""

import io

import pytest
from rich.console import Console

from nsqd.cli.figures import Figures
from nsqd.cli.watch.rows import Key, Row
from nsqd.cli.watch.screen import NodeLine, draw, show_rate, show_trend
from nsqd.cli.watch.view import View


def rows(count: int, name: str = "topic") -> list[Row]:
    found = []
    for index in range(count):
        entry = {"depth": index, "message_count": 10**9, "paused": index == 1}
        figures = Figures.add_up("", [entry], 0.0)
        key = Key(f"{name}{index}", "channel")
        found.append(Row(key, figures, 123456.0, 1.25, 99.0, (0, index)))
    return found


def render(view: View, nodes: list[NodeLine], width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(draw(view, nodes, "title", width=width, height=height))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (200, 50)])
@pytest.mark.parametrize(
    "name", ["t", "a.topic.with.a.name.of.sixty.four.characters.as.nsqd.allows"]
)
def test_it_fits_the_terminal(width: int, height: int, name: str) -> None:
    view = View()
    view.set_rows(rows(100, name))
    nodes = [NodeLine(f"10.0.0.{index}:4151", "OK", "1.3.0") for index in range(30)]

    lines = render(view, nodes, width, height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    heads = next(line.split() for line in lines if line.startswith("queue"))
    assert {"in/s", "depth", "clients"} <= set(heads) or width < 60
    assert ("messages" in heads) == (width >= 150)


def test_the_selected_row_is_on_the_screen() -> None:
    view = View("name")
    view.set_rows(rows(100))
    view.selected = Key("topic77", "channel")

    assert any("topic77/" in line for line in render(view, [], 100, 12))


def test_names_from_the_network_cannot_drive_the_terminal() -> None:
    view = View()
    view.set_rows(rows(2, "\x1b]0;owned\x07"))
    view.message = "\x1b[2J"

    lines = render(view, [NodeLine("[red]x\x1b[1m", "\x9bNOK", is_down=True)], 100, 12)

    assert not any("\x1b" in line or "\x07" in line or "\x9b" in line for line in lines)
    assert any(line.startswith(r"[red]x\x1b[1m") for line in lines)


def test_rates_and_trends() -> None:
    assert [show_rate(rate) for rate in (None, 0.0, 0.25, 12.4, 1e6)] == [
        *("", "0", "0.2", "12", "1,000,000"),
    ]
    assert show_trend([0, 0]) == ""
    assert show_trend([0, 1, 2, 4, 8]) == "▁▂▃▅█"
