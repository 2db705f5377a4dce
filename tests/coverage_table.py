"""`make coverage`: print the coverage of each package from the report of coverage.py."""

import json
import sys
from collections import Counter
from pathlib import Path, PurePath

REPORT = Path("build/coverage/report.json")
COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def main() -> int:
    """Print a line for each package, and one (/**) for each with all below it; return 0."""
    sums: dict[str, Counter[str]] = {}
    for path, file in json.loads(REPORT.read_text())["files"].items():
        folders = PurePath(path).parts[:-1]
        names = {"/".join(folders), f"{folders[0]}/**", "**"}
        for name in names:
            sums.setdefault(name, Counter()).update({key: file["summary"][key] for key in COUNTS})
    table = [f"{'package':24} {'lines':>7} {'branches':>9} {'both':>8} {'missed':>7}"]
    for name, counts in sorted(sums.items()):
        lines, hit_lines, branches, hit_branches = (counts[key] for key in COUNTS)
        table.append(
            f"{name:24} {_percent(hit_lines, lines)} {_percent(hit_branches, branches):>9}"
            f" {_percent(hit_lines + hit_branches, lines + branches):>8}"
            f" {lines + branches - hit_lines - hit_branches:7}"
        )
    sys.stdout.write("\n".join((*table, "")))
    return 0


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):6.1f}%"


if __name__ == "__main__":
    sys.exit(main())
