"""The modules without a DOM, called in a page: formats, JSON as text, history, polling, routes."""

# ruff: noqa: E501 - JavaScript, in lines as long as those of the page

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.daemon_process import DaemonProcess

MODULES = ("format", "bodies", "history", "model", "store", "table")


class Modules:
    """Evaluates expressions over the page's modules, which they find by name."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.evaluate(
            """async (names) => {
              const root = document.querySelector('meta[name="nsq-root"]').content;
              for (const name of names) window[`$${name}`] = await import(`${root}/${name}.js`);
            }""",
            list(MODULES),
        )

    def __call__(self, expression: str, argument: object = None) -> Any:
        return self._page.evaluate(expression, argument)


@pytest.fixture(scope="module")
def js(nsqd: DaemonProcess, browser: Browser) -> Iterator[Modules]:
    page = browser.new_page()
    page.goto(f"http://{nsqd.http_address}/console/settings")
    page.wait_for_selector("html[data-ready]")
    yield Modules(page)
    page.close()


def test_numbers_and_times_as_text(js: Modules) -> None:
    assert js("$format.count(120431)") == "120,431"
    assert js("$format.count(null)") == "\u2013"
    assert js("[0, 0.01, 2.34, 812.4].map($format.rate)") == ["0", "< 0.1", "2.3", "812"]
    assert js("[0, 999, 1500, 88e6, 1.2e12].map($format.bytes)") == [
        "0 B",
        "999 B",
        "1.5 KB",
        "88 MB",
        "1.2 TB",
    ]
    assert js("[0.2, 14, 840, 11000, 1e6].map($format.duration)") == [
        "< 1 s",
        "14 s",
        "14 min",
        "3 h",
        "12 d",
    ]
    assert js("$format.latency(9e7)") == "90 ms"
    assert js("[[0, 1, 1], [10, 1, 1], [10, 0, 5]].map((a) => $format.timeToEmpty(...a))") == [
        "empty",
        "never",
        "2 s",
    ]
    assert js("$format.time(0, { utc: true, now: 0, millis: true })") == "00:00:00.000 UTC"
    assert js("$format.time(1e20)") == "\u2013"


@pytest.mark.parametrize(
    ("text", "laid"),
    [
        ('{"a":1}', '{\n  "a": 1\n}'),
        (
            '{"id":9007199254740993,"id":-1.50e+3}',
            '{\n  "id": 9007199254740993,\n  "id": -1.50e+3\n}',
        ),
        ("[ ]", "[]"),
        (
            ' [{},[1,"\\u00e9\\n"],null] ',
            '[\n  {},\n  [\n    1,\n    "\\u00e9\\n"\n  ],\n  null\n]',
        ),
        ('"text"', None),
        ("{", None),
        ("[1,]", None),
        ('{"a" 1}', None),
        ("{1: 2}", None),
        ("[1] 2", None),
        ("[01]", None),
        ('["a\nb"]', None),
        ("[1}", None),
    ],
)
def test_json_is_laid_out_as_text(js: Modules, text: str, laid: str | None) -> None:
    assert js("(text) => $bodies.indentJson(text)?.text ?? null", text) == laid


def test_long_json_is_cut_and_deep_json_needs_no_stack(js: Modules) -> None:
    cut = js("$bodies.indentJson(`[${'1,'.repeat(1e5)}1]`, 1000)")
    assert not cut["isWhole"]
    assert 1000 <= len(cut["text"]) < 1100
    assert js("$bodies.indentJson('['.repeat(1e5) + ']'.repeat(1e5)).isWhole")


@pytest.mark.parametrize(("end", "left"), [("]", None), ("", ""), ("] 1", " 1"), ("}", "}")])
def test_json_is_laid_out_piece_by_piece(js: Modules, end: str, left: str | None) -> None:
    pieces = js(
        """(text) => {
          const pieces = $bodies.jsonPieces(text, 1000);
          const found = [];
          let step;
          for (step = pieces.next(); !step.done; step = pieces.next()) found.push(step.value);
          return { found, ...step.value, left: text.slice(step.value.position) };
        }""",
        "[" + "1," * 3000 + "1" + end,
    )

    assert pieces["isJson"] is (left is None)
    laid = "\n".join([*pieces["found"], pieces["rest"]])
    assert laid.startswith("[\n" + "  1,\n" * 3000 + "  1")
    assert all(1000 <= len(piece) < 1100 for piece in pieces["found"])
    assert pieces["left"] == (left or "")


def test_bytes_as_hex_and_base64(js: Modules) -> None:
    assert js("$bodies.hexDump(new Uint8Array([0, 65, 255]))") == (
        f"00000000  {'00 41 ff':<47}  .A."
    )
    assert js("$bodies.toBase64($bodies.fromBase64('AP8='))") == "AP8="
    assert js("$bodies.fromBase64('no!')") is None
    assert js("$bodies.decodeUtf8(new Uint8Array([255]))") is None


def test_a_counter_that_fell_is_a_gap(js: Modules) -> None:
    assert js("$history.perSecond(10, 20, 5)") == 2
    assert js("$history.perSecond(20, 10, 5)") is None
    assert js("$history.perSecond(undefined, 10, 5)") is None
    assert js("$history.perSecond(1, 2, 0)") is None


def test_history_has_gaps_bounds_and_two_ranges(js: Modules) -> None:
    found = js(
        """() => {
          const log = new $history.History();
          const row = (n) => ({ topic: `t${n}`, waiting: n + 1, depth: n, in_rate: null, list: [] });
          const topics = new Map();
          for (let n = 0; n < 700; n++) topics.set(`t${n}`, row(n));
          for (let round = 0; round < 300; round++) log.record(round * 5, { waiting: round }, topics);
          const fine = log.read({});
          const coarse = log.read({ range: "1h" });
          return {
            tracks: log.tracks.size, max: $history.MAX_TRACKS, fine: fine.t.length,
            last: fine.series.waiting.at(-1), gap: fine.series.in.at(-1),
            step: coarse.t.at(-1) - coarse.t.at(-2), unknown: log.read({ topic: "no" }).series.depth[0],
          };
        }"""
    )
    assert found["tracks"] <= found["max"]
    assert (found["fine"], found["last"], found["gap"]) == (120, 299, None)
    assert (found["step"], found["unknown"]) == (30, None)


def test_rates_of_a_node_that_does_not_count_finished_messages(js: Modules) -> None:
    row = js(
        """() => {
          const make = (counts) => ({ topic: "t", channel: "c", depth: 0, in_flight: 0, deferred: 0, ...counts });
          const before = make({ message_count: 10, depth: 5 });
          $history.addRates(before, undefined, null);
          const row = make({ message_count: 30, depth: 5, in_flight: 10 });
          $history.addRates(row, before, 5);
          return row;
        }"""
    )
    assert (row["in_rate"], row["out_rate"], row["out_estimated"]) == (4, 2, True)


def test_rows_that_change_keep_the_others(js: Modules) -> None:
    found = js(
        """() => {
          const model = new $model.Model();
          const row = (topic, channel, more) => ({ topic, channel, depth: 0, ...more });
          model.apply([row("a", null, { dead_letter_topic: "a.dead" }), row("a", "y"), row("a", "x"),
                       row("a.dead", null)], { full: true });
          model.apply([row("a", "x", { depth: 7 })], { removed: [["a", "y"]] });
          return [[...model.topics.keys()], model.topics.get("a").list.map((c) => [c.channel, c.depth]),
                  model.topics.get("a.dead").dead_letters_of];
        }"""
    )
    assert found == [["a", "a.dead"], [["x", 7]], "a"]


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("/q/", {"name": "overview"}),
        ("/q/topics", {"name": "topics"}),
        ("/q/topics/x%23ephemeral", {"name": "topic", "topic": "x#ephemeral"}),
        ("/q/topics/t/c", {"name": "channel", "topic": "t", "channel": "c"}),
        ("/q/topics/t/c/messages", {"name": "messages", "topic": "t", "channel": "c"}),
        ("/q/topics?topic=..", {"name": "topic", "topic": ".."}),
        ("/q/topics?topic=..&channel=.", {"name": "channel", "topic": "..", "channel": "."}),
        ("/q/nodes/h:4151", {"name": "node", "node": "h:4151"}),
        ("/q/lookup", {"name": "lookup"}),
        ("/q/counter", {"name": "counter"}),
        ("/q/other", {"name": "unknown"}),
        ("/q/topics/%ff", {"name": "unknown"}),
    ],
)
def test_addresses_and_back(js: Modules, address: str, wanted: dict[str, str]) -> None:
    found = js(
        """(address) => {
          const url = new URL(address, "http://h");
          const route = $store.parseRoute(url.pathname, url.search, "/q");
          const again = route.name === "unknown" ? null : $store.makeHref("/q", route.name, { ...route, query: {} });
          const back = again && $store.parseRoute(new URL(again, "http://h").pathname, new URL(again, "http://h").search, "/q");
          return [route, back];
        }""",
        address,
    )
    for route in filter(None, found):
        del route["query"]
        assert route == wanted


def test_polling_waits_longer_after_errors_and_never_piles_up(js: Modules) -> None:
    found = js(
        """async () => {
          const waits = [];
          let asked = 0;
          let mode = "fail";
          let isVisible = true;
          const poller = new $store.Poller({
            ask: async () => { asked += 1; if (mode === "fail") throw Object.assign(new Error("x"), { isAnswer: false }); },
            interval: () => 5, isVisible: () => isVisible, setTimer: (run, ms) => waits.push(ms / 1000), clearTimer: () => {}, clock: () => 0,
          });
          for (let n = 0; n < 7; n++) await poller.now();
          mode = "well";
          await Promise.all([poller.now(), poller.now(), poller.now()]);
          const slow = poller.wait(0.5);
          isVisible = false;
          return { waits, asked, slow, hidden: poller.wait(0) };
        }"""
    )
    assert found["waits"] == [5, 10, 20, 40, 60, 60, 60, 5]
    assert (found["asked"], found["slow"], found["hidden"]) == (8, 10, None)


def test_the_window_of_rows(js: Modules) -> None:
    view = js(
        "(o) => $table.rowsInView(o)",
        {"count": 2000, "rowHeight": 33, "top": 33000, "viewHeight": 900},
    )
    assert view["first"] <= 1000 <= view["last"]
    assert view["last"] - view["first"] <= 80
    assert view["before"] + view["after"] + (view["last"] - view["first"]) * 33 == 2000 * 33
    end = js(
        "(o) => $table.rowsInView(o)",
        {"count": 2000, "rowHeight": 33, "top": 1e9, "viewHeight": 900},
    )
    assert end["last"] == 2000
    whole = js(
        "(o) => $table.rowsInView(o)", {"count": 300, "rowHeight": 33, "top": 0, "viewHeight": 900}
    )
    assert (whole["first"], whole["last"]) == (0, 300)


def test_what_is_unknown_sorts_last_both_ways(js: Modules) -> None:
    order = """(isDown) => $table.sortRows([{k: "a", v: null}, {k: "b", v: 2}, {k: "c", v: 1}],
      { column: { value: (row) => row.v }, isDown }, (row) => row.k).map((row) => row.k)"""
    assert js(order, False) == ["c", "b", "a"]
    assert js(order, True) == ["b", "c", "a"]
