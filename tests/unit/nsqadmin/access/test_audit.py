import json
import os
import stat
from pathlib import Path

import pytest

from nsqadmin.access.audit import MAX_ENTRIES, MAX_REFUSED, AuditTrail, Entry
from nsqd.config.flags import OptionsError
from nsqd.http.server import HttpError


def new_entry(trail: AuditTrail, action: str = "empty_topic") -> Entry:
    return trail.new_entry(action, user="ada", role="admin", remote="10.0.0.1:5", agent="curl")


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_change_has_two_lines_in_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    trail = AuditTrail(str(path))
    entry = new_entry(trail)
    entry.topic = "t"

    await trail.begin(entry)
    await trail.finish(entry, "failed", "1 done, 1 failed")
    trail.close()

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    first, second = read(path)
    assert (first["outcome"], second["outcome"]) == ("running", "failed")
    assert (second["user"], second["topic"], second["from"]) == ("ada", "t", "10.0.0.1:5")
    assert "channel" not in second


def test_a_file_that_cannot_be_written_keeps_it_from_starting(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="failed to open --audit-log"):
        AuditTrail(str(tmp_path))


async def test_a_change_that_cannot_be_written_down_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = AuditTrail(str(tmp_path / "audit.log"))

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(HttpError) as caught:
        await trail.begin(new_entry(trail))

    assert (caught.value.status, caught.value.code) == (503, "AUDIT_FAILED")
    assert trail.page(None, 10) == ([], False)
    trail.close()


async def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    trail = AuditTrail(str(path))
    await trail.begin(new_entry(trail))
    path.rename(tmp_path / "audit.log.1")

    await trail.begin(new_entry(trail))
    trail.close()

    assert len(read(path)) == len(read(tmp_path / "audit.log.1")) == 1


async def test_the_last_thousand_are_in_memory_newest_first() -> None:
    trail = AuditTrail("")
    for _ in range(MAX_ENTRIES + 5):
        await trail.begin(new_entry(trail))

    entries, has_more = trail.page(None, 2)
    assert ([entry.id for entry in entries], has_more) == ([MAX_ENTRIES + 5, MAX_ENTRIES + 4], True)
    older, has_more = trail.page(8, 100)
    assert ([entry.id for entry in older], has_more) == ([7, 6], False)


async def test_what_strangers_were_refused_pushes_out_no_change() -> None:
    trail = AuditTrail("")
    await trail.begin(new_entry(trail))
    for _ in range(2 * MAX_ENTRIES):
        trail.note_refused(new_entry(trail, "POST /"), "CROSS_SITE")

    entries, _ = trail.page(None, 10_000)
    assert len(entries) == MAX_REFUSED + 1
    assert entries[-1].id == 1
    assert entries[0].as_json()["text"] == "CROSS_SITE"
