"""`python -m tests.console.bars [page] [nsqadmin] [nsqd]`: measure the bars, all without names."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator

from playwright.sync_api import Browser, sync_playwright

from tests.console.bars.fleet import measure_fleet
from tests.console.bars.node import measure_node
from tests.console.bars.page import measure_page
from tests.console.bars.row import Row, show
from tests.console.conftest import CHROMIUM, FLAGS

PARTS: dict[str, Callable[[Browser], Iterator[Row]]] = {
    "page": measure_page,
    "nsqadmin": lambda _browser: measure_fleet(),
    "nsqd": measure_node,
}


def main() -> int:
    """Measure, and print the table; 1 if a bar was not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if CHROMIUM is None:
        parser.error("no Chromium here (Debian: apt-get install chromium)")
    rows: list[Row] = []
    began = time.monotonic()
    with sync_playwright() as playwright:
        for part in parts:
            # A browser of its own for each part: the one before may have left it warm or large.
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            for row in PARTS[part](browser):
                rows.append(row)
                elapsed_s = time.monotonic() - began
                print(f"[{elapsed_s:3.0f} s] {row.bar}: {row.measured}", file=sys.stderr)
            browser.close()
    load = os.getloadavg()[0]
    print(show(rows))
    print(f"\n{os.cpu_count()} cores, load {load:.1f} at the end, {time.monotonic() - began:.0f} s")
    return 0 if all(row.is_met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
