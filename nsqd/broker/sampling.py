"""Sampling: a consumer that wants only a share of the messages."""

import random

from nsqd.broker.queue.batch import Message
from nsqd.broker.queue.piece import Piece


def sample(piece: Piece, sample_rate: int) -> tuple[Piece | None, list[int]]:
    """Keep a share of a piece; return it and the records on disk of what was dropped.

    As in nsqd the share is sample_rate + 1 percent, and what is dropped is dropped for the whole
    channel.
    """
    kept: list[Message] = []
    dropped: list[int] = []
    for message in piece.messages():
        if random.randrange(100) <= sample_rate:
            kept.append(message)
        elif message[4] is not None:
            dropped.append(message[4])
    if not kept:
        return None, dropped
    return Piece.from_messages(kept, piece.origin), dropped
