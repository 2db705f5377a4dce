"""Sampling: a consumer that wants only a share of the messages."""

import random

from nsqd.broker.queue.batch import Message, StoredBatch
from nsqd.broker.queue.message_queue import Piece


def sample(piece: Piece, sample_rate: int) -> tuple[Piece | None, list[int]]:
    """Keep a share of a piece; return it and the records on disk of what was dropped.

    As in nsqd the share is sample_rate + 1 percent, and what is dropped is dropped for the whole
    channel.
    """
    batch, start, stop, ordinals = piece
    kept: list[Message] = []
    dropped: list[int] = []
    for index, message in enumerate(batch.messages(start, stop), start=start):
        ordinal = None if ordinals is None else ordinals[index]
        if random.randrange(100) <= sample_rate:
            kept.append((*message[:4], ordinal))
        elif ordinal is not None:
            dropped.append(ordinal)
    if not kept:
        return None, dropped
    sampled = StoredBatch.from_messages(kept)
    return (sampled, 0, len(kept), sampled.ordinals), dropped
