"""Marks: an extended attribute by which a segment and its checksum file know each other.

Both get the same random one with their first sync. Damage of their content does not change it, and
a segment that go-diskqueue has made under the name of an older one has none. So where the marks are
the same, the checksums are those of this segment, though not one of them may be right any more.
Where they differ or are missing, as on a file system without attributes or in a copy without them,
the content has to tell (`checks`).
"""

import contextlib
import os
import sys

NAME = "user.nsqd.segment"
_MARK_BYTES = 16


def mark(segment_path: str, checksum_path: str) -> None:
    """Give both files the same mark, if the file system can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            content = os.urandom(_MARK_BYTES)
            os.setxattr(checksum_path, NAME, content)
            os.setxattr(segment_path, NAME, content)


def have_same_mark(segment: int | str, checksums: int | str) -> bool:
    """Tell whether two files, open or by their paths, have a mark, and the same one."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.getxattr(segment, NAME) == os.getxattr(checksums, NAME)
    return False
