"""What /proc tells of a process."""

import re
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the seconds of processor that all its threads have used, to the microsecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def wake_count(pid: int) -> int:
    """Return how often its main thread has waited, and so was woken."""
    return _find(pid, "voluntary_ctxt_switches")


def rss_bytes(pid: int) -> int:
    """Return its memory of now."""
    return _find(pid, "VmRSS") * 1024


def peak_rss_bytes(pid: int) -> int:
    """Return the most memory that it had."""
    return _find(pid, "VmHWM") * 1024


def _find(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])
