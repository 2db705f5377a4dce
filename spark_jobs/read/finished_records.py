"""Records behind the read position that are finished already, as nsqd's sidecar file tells.

The read position is that of the oldest unfinished message; what was finished behind it stands in a
file beside the metadata. `diskqueue.sidecar` decides what of that is believed, here as when nsqd
starts, so a backlog lacks exactly those messages that nsqd would not deliver again. Local
directories only: elsewhere nothing counts as finished behind the read position.
"""

import logging
from dataclasses import dataclass, field

import numpy as np

from diskqueue import layout, sidecar
from spark_jobs.read.storage import Directory

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinishedRecords:
    """What the sidecar of a queue proves."""

    # Segment -> the starts and ends of ranges in turns, as the bytes of an int64 array.
    bounds: dict[int, bytes] = field(default_factory=dict)
    # The first and last numbers of segments that were finished and deleted before older ones.
    gaps: tuple[tuple[int, int], ...] = ()
    # Newer than the metadata's if a crash came between the two files.
    read: tuple[int, int] = (0, 0)


NOTHING_FINISHED = FinishedRecords()


def read_finished_records(
    directory: Directory, name: str, metadata: layout.Metadata, sizes: dict[int, int]
) -> FinishedRecords:
    """What of a queue is finished behind its read position; nothing where that is not proven.

    Raises:
        OSError: a file cannot be read.
    """
    path = directory.find_local_path()
    if path is None:
        return NOTHING_FINISHED
    read = sidecar.Position(metadata.read_file, metadata.read_pos)
    try:
        evidence = sidecar.examine(path, name, read, sizes)
    except FileNotFoundError:
        return NOTHING_FINISHED  # consumed meanwhile
    if evidence is None:
        return NOTHING_FINISHED
    for doubt in evidence.doubts:
        _logger.warning("finished records not believed path=%s/%s %s", path, name, doubt)
    bounds = {
        segment: np.array([entry[:2] for entry in records], np.int64).tobytes()
        for segment, records in evidence.find_records().items()
        if records
    }
    gaps = tuple((gap.start, gap.end - 1) for gap in evidence.gaps)
    number, offset = evidence.read
    return FinishedRecords(bounds, gaps, (number, offset))
