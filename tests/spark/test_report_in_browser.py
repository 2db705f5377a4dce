"""The report's page in headless Chromium: plots there, no console error, light and dark."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spark_jobs.jobs.report_page import render
from tests.spark.made_reports import made_fleet_report, made_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
)
# A page's console goes to Chromium's log as lines with this.
CONSOLE = re.compile(r".*:CONSOLE.*")
PROBE = """<script>{
const css = getComputedStyle(document.body);
const widths = [...document.querySelectorAll('.mark')].map(m => m.getBoundingClientRect().width);
const queues = document.getElementById('queues');
const shown = () => [...queues.tBodies[0].rows].filter(row => !row.hidden);
const topics = () => shown().map(row => row.cells[0].innerText);
const page = document.documentElement;
const box = e => e.getBoundingClientRect();
const isCut = text => {
  const [inner, outer] = [box(text), box(text.closest('svg'))];
  return inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1);
};
const tick = document.querySelector('.wide .tick');
const found = {cut: [...document.querySelectorAll('svg text')].filter(isCut).length,
  tick: tick ? box(tick).height : 0,
  table: queues ? queues.parentElement.scrollWidth - queues.parentElement.clientWidth : 0,
  width: page.scrollWidth, window: innerWidth,
  back: css.backgroundColor, ink: css.color, marks: widths.length,
  drawn: widths.filter(w => w > 0).length};
if (queues) {
  found.before = topics()[0];
  queues.tHead.rows[0].cells[0].click();
  found.after = topics()[0];
  const search = document.getElementById('search');
  if (search) {
    search.value = '0042';
    search.dispatchEvent(new Event('input'));
    found.search = topics().join();
  }
}
document.title = JSON.stringify(found);
}</script>"""


@pytest.fixture(autouse=True)
def chromium() -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")


def look(
    page: str, directory: Path, *, is_dark: bool = False, width: int = 1100
) -> tuple[str, list[str]]:
    """Return the page's DOM after its scripts ran, and the lines of its console."""
    path = directory / "report.html"
    path.write_text(page)
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, *FLAGS, scheme, f"--window-size={width},1500"),
            *(f"--user-data-dir={directory}/profile", "--dump-dom", str(path)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, CONSOLE.findall(done.stderr)


def probe(
    page: str, directory: Path, *, is_dark: bool = False, width: int = 1100
) -> dict[str, object]:
    probed = page.replace("</body>", f"{PROBE}</body>")
    dom, console = look(probed, directory, is_dark=is_dark, width=width)
    assert console == []
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    found: dict[str, object] = json.loads(title[1])
    return found


@pytest.mark.parametrize("topic_count", [0, 1, 100])
def test_plots_are_drawn_without_a_console_error(topic_count: int, tmp_path: Path) -> None:
    dom, console = look(render(made_report(topic_count)), tmp_path)

    assert console == []
    # Of several topics, also all of them over time, and three ranks.
    assert dom.count("<svg") == topic_count * 4 + (4 if topic_count > 1 else 0)
    assert dom.count('class="mark"') >= 50 * topic_count


def test_an_error_would_be_noticed(tmp_path: Path) -> None:
    page = render(made_report(0)).replace("</body>", "<script>nothing()</script></body>")

    _, console = look(page, tmp_path)

    assert any("nothing is not defined" in line for line in console)


def test_light_and_dark(tmp_path: Path) -> None:
    light = probe(render(made_report(1)), tmp_path)
    dark = probe(render(made_report(1)), tmp_path, is_dark=True)

    assert light["back"] == "rgb(244, 246, 248)"
    assert dark["back"] == "rgb(18, 22, 27)"
    assert light["ink"] != dark["ink"]
    assert light["drawn"] == light["marks"]


def test_a_fleet_of_500_queues_fits_the_page(tmp_path: Path) -> None:
    found = probe(render(made_fleet_report(500)), tmp_path, is_dark=True)

    assert found["drawn"] == found["marks"]
    assert found["width"] <= found["window"]  # type: ignore[operator]


@pytest.mark.parametrize("topic_count", [1, 500])
@pytest.mark.parametrize("width", [1400, 800])
def test_nothing_is_cut_and_labels_are_readable(
    topic_count: int, width: int, tmp_path: Path
) -> None:
    report = made_fleet_report(topic_count)
    for queue in report.queues:
        # The longest words for an age.
        queue.oldest = report.created - timedelta(minutes=59, seconds=59)

    found = probe(render(report), tmp_path, width=width)

    assert found["window"] == width
    assert found["cut"] == 0
    assert found["width"] <= found["window"]  # type: ignore[operator]
    assert found["tick"] > 10  # type: ignore[operator]
    if width == 1400:
        assert found["table"] == 0, "all columns are seen without scrolling"


def test_the_table_sorts_and_finds(tmp_path: Path) -> None:
    found = probe(render(made_report(100)), tmp_path)

    assert found["before"] == "topic-0000"
    assert found["after"] == "topic-0099"
    assert found["search"] == "topic-0042"


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    """Negative ones and fractions, too: -0.5 is above -10, and 8.76 below 8.9."""
    report = made_fleet_report(30)
    for number, queue in enumerate(report.queues):
        assert queue.growth is not None
        change = number * 7 % 30 - 15
        queue.growth = replace(queue.growth, before_count=0, after_count=change, span_s=420)
    script = """<script>{
      const table = document.getElementById('queues'), found = {};
      for (const th of table.tHead.rows[0].cells) if (th.className === 'n') {
        th.click();
        const cells = [...table.tBodies[0].rows].map(row => row.cells[th.cellIndex]);
        found[th.innerText] = cells.map(cell => cell.dataset.sort);
      }
      document.title = JSON.stringify(found);
    }</script>"""

    dom, console = look(render(report).replace("</body>", f"{script}</body>"), tmp_path)

    assert console == []
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    columns = {name: list(map(float, keys)) for name, keys in json.loads(title[1]).items()}
    assert len(columns) > 10
    for name, keys in columns.items():
        assert keys == sorted(keys, reverse=True), name
