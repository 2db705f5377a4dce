"""LimitBook: decides which limits each topic has, its own or the flags', and applies them."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from nsqd.broker.limits.dead_letter import Publish, find_dead_letter_name
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.limits.queue_bounds import AgeClock, Rules
from nsqd.broker.limits.topic_bounds import TopicBounds
from nsqd.broker.scheduler import Scheduler
from nsqd.broker.topic import Topic
from nsqd.config.limits import LIMITS, NO_LIMITS, Limits

logger = logging.getLogger(__name__)

# Dead letters wait for an operator. These flags don't hold for them, only the limits that their own
# topic has; and dead letters never become dead letters again.
_NOT_FOR_DEAD_LETTERS = ("msg_ttl_s", "max_attempts")


class LimitBook:
    """The limits of all topics."""

    def __init__(
        self, flags: Limits, topics: Mapping[str, Topic], scheduler: Scheduler, publish: Publish
    ) -> None:
        """Args:
        topics: the broker's own mapping, which changes.
        publish: publishes dead letters.
        """
        self._flags = flags
        self._topics = topics
        self._scheduler = scheduler
        self._publish = publish
        # Dead-letter topics by the topic that has a suffix of its own.
        self._names: dict[str, str] = {}

    def find_limits(self, topic: Topic) -> tuple[Limits, dict[str, str]]:
        """Return the limits in force, and where each comes from."""
        own = topic.limit_overrides
        sources = {
            limit.field_name: "topic" if limit.field_name in own.values else "flag"
            for limit in LIMITS
        }
        flags = self._flags
        if not self._is_dead_letter_topic(topic.name):
            return own.over(flags), sources
        for name in _NOT_FOR_DEAD_LETTERS:
            flags = replace(flags, **{name: getattr(NO_LIMITS, name)})
            if sources[name] == "flag":
                sources[name] = "dead-letter topic"
        sources["dead_letter_topic_suffix"] = "dead-letter topic"
        return replace(own.over(flags), dead_letter_topic_suffix=""), sources

    def find_dead_letter_name(self, topic: Topic) -> str | None:
        """Return the topic that gets a topic's dead letters, None if they are dropped."""
        limits, _ = self.find_limits(topic)
        return find_dead_letter_name(topic.name, limits.dead_letter_topic_suffix)

    def set(self, topic: Topic, overrides: LimitOverrides) -> None:
        """Give a topic limits of its own, in place of all that it had."""
        topic.limit_overrides = overrides
        suffix = overrides.values.get("dead_letter_topic_suffix", "")
        before = self._names.pop(topic.name, None)
        name = find_dead_letter_name(topic.name, suffix)
        if name is not None:
            self._names[topic.name] = name
        self.apply(topic)
        for other in {before, name} - {None, topic.name}:
            # That topic has become a dead-letter topic, or is one no more.
            if (changed := self._topics.get(other or "")) is not None:
                self.apply(changed)

    def forget(self, topic: Topic) -> None:
        """Forget a topic that was deleted."""
        self._names.pop(topic.name, None)

    def apply(self, topic: Topic) -> None:
        """Put the limits of a topic in force."""
        self._replace_bounds(topic)
        # Messages may have gone back from limbo to the topic's own queue.
        topic.rearrange()

    def _replace_bounds(self, topic: Topic) -> None:
        limits, _ = self.find_limits(topic)
        before = topic.bounds
        # Dead letters on their way keep their bounds, with limits that limit nothing.
        if limits.is_off and (before is None or not before.has_limbo):
            if before is not None:
                before.close()
                topic.bounds = None
            for channel in topic.channels.values():
                channel.set_bounds(None)
            return
        name = find_dead_letter_name(topic.name, limits.dead_letter_topic_suffix)
        if name is None and limits.dead_letter_topic_suffix and not topic.is_ephemeral:
            logger.warning(
                "TOPIC(%s): has no dead letters, its name is too long for the suffix %s",
                *(topic.name, limits.dead_letter_topic_suffix),
            )
        clock = AgeClock(self._scheduler, limits.msg_ttl_s)
        rules = Rules(topic.name, limits, clock, self._scheduler, name, self._publish)
        topic.bounds = TopicBounds(topic, rules, before)

    def _is_dead_letter_topic(self, name: str) -> bool:
        suffix = self._flags.dead_letter_topic_suffix
        return bool(suffix and name.endswith(suffix)) or name in self._names.values()
