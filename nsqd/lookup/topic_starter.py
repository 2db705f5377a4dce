"""TopicStarter: a new topic starts when the nsqlookupds have named the channels of the cluster.

So none of these channels misses the topic's first message. The topic accepts messages meanwhile,
and a slow nsqlookupd holds up only the topics that it is asked about.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from nsqd.broker.topic import Topic, TopicState
from nsqd.lookup.channel_query import ChannelQueryError, PeerQuestions, usable_channels

logger = logging.getLogger(__name__)

# How long a reader of the channels waits for a slow nsqlookupd.
TOPICS_PATIENCE_S = 0.25


class TopicStarter:
    """Hold the topics that wait for answers, and start them."""

    def __init__(self) -> None:
        # Each with the channels that it got or lost while it waits.
        self._waiting: dict[Topic, set[str]] = {}
        self._is_none_waiting = asyncio.Event()

    def begin(
        self, topic: Topic, questions: Sequence[PeerQuestions], tasks: asyncio.TaskGroup
    ) -> None:
        """Start a topic in the background, when all nsqlookupds have answered or failed."""
        self._waiting[topic] = set()
        self._is_none_waiting.clear()
        tasks.create_task(self._start(topic, questions))

    def note_channel(self, topic: Topic, name: str) -> None:
        """Note that a channel has come or gone; an answer must not bring back a deleted one."""
        if topic in self._waiting:
            self._waiting[topic].add(name)

    async def wait(self) -> None:
        """Return when no topic waits for its channels, or soon in any case.

        For readers of the channels right after a publish: the Go nsqd answers that publish only
        when the channels are there, ours answers at once.
        """
        if self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOPICS_PATIENCE_S):
                    await self._is_none_waiting.wait()

    async def _start(self, topic: Topic, questions: Sequence[PeerQuestions]) -> None:
        try:
            found: set[str] = set()
            async with asyncio.TaskGroup() as tasks:
                for line in questions:
                    tasks.create_task(_find_channels(line, topic.name, found))
            # The topic may have been deleted meanwhile.
            if topic.state is TopicState.STARTING:
                _make_channels(topic, found - self._waiting[topic])
                topic.start()
        finally:
            del self._waiting[topic]
            if not self._waiting:
                self._is_none_waiting.set()


async def _find_channels(questions: PeerQuestions, topic_name: str, found: set[str]) -> None:
    """Add the channels that one nsqlookupd names; log why it names none."""
    try:
        found.update(await questions.ask(topic_name))
    except (OSError, ChannelQueryError) as error:
        logger.error(  # noqa: TRY400 - no traceback
            "LOOKUPD(%s): failed to ask for channels of topic %s - %s",
            questions.peer.address,
            topic_name,
            str(error) or "no answer in time",
        )


def _make_channels(topic: Topic, found: set[str]) -> None:
    for name in usable_channels(found):
        try:
            topic.ensure_channel(name)
        except OSError as error:
            logger.error("TOPIC(%s): failed to create channel %s - %s", topic.name, name, error)  # noqa: TRY400 - no traceback
