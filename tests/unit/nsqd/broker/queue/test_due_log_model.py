"""Any order of operations on a DueLog against a list of all that was noted."""

import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsqd.broker.queue import due_log
from nsqd.broker.queue.due_log import DueLog

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
IDS = [b"%016d" % number for number in range(5)]
ENTRY_BYTES = 36


class DueLogMachine(RuleBasedStateMachine):
    """The model: what was noted in which order, and how often each id is unread and for when."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.rotation = mock.patch.object(due_log, "_ROTATE_BYTES", 4 * ENTRY_BYTES)
        self.rotation.start()
        self.now_ns = START_NS
        self.entries: list[tuple[bytes, int]] = []
        self.unread: dict[bytes, int] = {}
        self.counts: Counter[bytes] = Counter()
        self.log = DueLog(self.path, "t:c", self.now_ns)

    def teardown(self) -> None:
        self.log.close()
        self.rotation.stop()
        self.folder.cleanup()

    def note(self, message_id: bytes, due_ns: int) -> None:
        self.unread[message_id] = due_ns
        self.counts[message_id] += 1

    @rule(
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True),
        delay_s=st.integers(1, 20),
        are_unread=st.booleans(),
    )
    def add(self, ids: list[bytes], delay_s: int, are_unread: bool) -> None:  # noqa: FBT001
        due_ns = self.now_ns + delay_s * SECOND_NS
        # A message that is deferred again is due later than before.
        due_ns = max([due_ns, *(due for message_id, due in self.entries if message_id in ids)])

        self.log.add(ids, due_ns, self.now_ns, are_unread=are_unread)

        self.entries += [(message_id, due_ns) for message_id in ids]
        for message_id in ids if are_unread else ():
            self.note(message_id, due_ns)

    @rule(message_id=st.sampled_from(IDS))
    def pop(self, message_id: bytes) -> None:
        expected = self.unread.get(message_id, 0)
        if expected:
            self.counts[message_id] -= 1
            if not self.counts[message_id]:
                del self.unread[message_id]

        assert self.log.pop(message_id) == expected

    @rule(passed_s=st.integers(1, 12))
    def wait(self, passed_s: int) -> None:
        self.now_ns += passed_s * SECOND_NS

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.unread, self.counts = {}, Counter()
        for message_id, due_ns in self.entries:
            if due_ns > self.now_ns:
                self.note(message_id, due_ns)
        self.log = DueLog(self.path, "t:c", self.now_ns)

    @rule(due_ids=st.lists(st.sampled_from(IDS), max_size=2, unique=True))
    def stop_and_restart(self, due_ids: list[bytes]) -> None:
        left = [entry for entry in self.entries if entry[1] > self.now_ns]
        counts = Counter(message_id for message_id, _ in left)
        later_ns = max([self.now_ns, *(due_ns for _, due_ns in left)]) + SECOND_NS
        times = dict(left) | dict.fromkeys(due_ids, later_ns)

        self.log.replace(dict.fromkeys(due_ids, later_ns), self.now_ns)

        self.entries = [entry for entry in times.items() for _ in range(max(counts[entry[0]], 1))]
        sizes = [path.stat().st_size for path in self.path.iterdir()]
        assert sizes == ([ENTRY_BYTES * len(self.entries)] if self.entries else [])
        self.restart()

    @rule()
    def remove(self) -> None:
        self.log.remove()

        self.entries, self.unread, self.counts = [], {}, Counter()
        assert list(self.path.iterdir()) == []

    @invariant()
    def what_is_unread_is_the_same(self) -> None:
        assert self.log.unread == self.unread
        # In steps of 0.13 s, which whole seconds are far from.
        between_ns = self.now_ns + SECOND_NS // 2
        early = sum(due_ns > between_ns for due_ns in self.unread.values())
        assert self.log.count_early(between_ns) == early

    @invariant()
    def files_have_whole_entries(self) -> None:
        sizes = [path.stat().st_size for path in self.path.iterdir()]
        assert all(size % ENTRY_BYTES == 0 for size in sizes)
        assert len(sizes) <= 2


TestDueLog = DueLogMachine.TestCase
TestDueLog.settings = settings(max_examples=60, stateful_step_count=30)
