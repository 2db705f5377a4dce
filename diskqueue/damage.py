"""What a queue does about damage: goes on behind it, and sees that nothing is thrown away.

Of a damaged segment everything is kept: it is never deleted, but renamed `.bad` when its records
are finished, or has that name as a second one from the moment when reading goes on behind the
damage. The positions belong to the queue's `Reader` and `Writer`; this module has no state.
"""

import logging
import os

from diskqueue import layout
from diskqueue.errors import CorruptSegmentError
from diskqueue.reader import Reader
from diskqueue.segment import Limits
from diskqueue.writer import Writer


def skip_damage(
    reader: Reader,
    writer: Writer,
    error: CorruptSegmentError,
    limits: Limits,
    logger: logging.Logger,
) -> None:
    """Moves the reader behind damage in its segment, or ends the segment there.

    Raises:
        OSError: the segment cannot be read, or not be copied; nothing was skipped.
    """
    segment = reader.segment
    resume = reader.find_resume(error.offset)
    rescued_bytes = 0
    end = segment.end
    if resume is not None:
        _go_on_at(resume, reader, writer, error)
    else:
        if segment is writer.segment:
            rescued_bytes = writer.rescue_behind(error.offset, limits)
        segment.end = error.offset
        if not layout.has_quarantine_name(error.path):
            segment.damage = error.reason
        resume = end
    logger.warning(
        "diskqueue segment damaged file=%s offset=%d reason=%r skipped_bytes=%d rescued_bytes=%d"
        " salvage=python -m diskqueue salvage %s.bad",
        *(error.path, error.offset, error.reason, resume - error.offset, rescued_bytes, error.path),
    )


def skip_unreadable(reader: Reader, writer: Writer, logger: logging.Logger) -> bool:
    """Moves the reader behind blocks that the disk cannot read, if it can read some behind them.

    Returns False otherwise: then the whole disk may be away, and nothing may be skipped.

    Raises:
        OSError: the segment cannot be read.
    """
    readable = reader.find_readable()
    if readable is None:
        return False
    path = writer.path_of(reader.segment)
    error = CorruptSegmentError(path, reader.position, "unreadable blocks", is_torn=False)
    resume = reader.find_resume(readable - 1)
    if resume is None:
        resume = reader.segment.end
    _go_on_at(resume, reader, writer, error)
    logger.error(
        "diskqueue segment unreadable, records go on behind file=%s offset=%d skipped_bytes=%d"
        " kept=%s.bad",
        *(path, error.offset, resume - error.offset, path),
    )
    return True


def _go_on_at(resume: int, reader: Reader, writer: Writer, error: CorruptSegmentError) -> None:
    segment = reader.segment
    if segment is writer.segment:
        writer.start_new_segment()
    # At once: when the read position has passed the damage, a restart finds nothing wrong with the
    # segment, and deletes it.
    if not layout.link_quarantined(error.path):
        segment.damage = error.reason
    reader.skip_to(resume)


def skip_missing(reader: Reader, writer: Writer, directory: str, logger: logging.Logger) -> None:
    """Ends a segment whose file is gone.

    Raises:
        OSError: the whole directory is gone, as with a volume that is not mounted: nothing was
            skipped.
    """
    os.stat(directory)
    segment = reader.segment
    logger.warning("diskqueue segment missing, skipped file=%s", writer.path_of(segment))
    if segment is writer.segment:
        writer.start_new_segment()
    segment.end = reader.position
    segment.exists = False
