"""StatsQuery: which part of the statistics a request asks for, and which topics that means."""

from dataclasses import dataclass

from nsqd.broker.broker import Broker
from nsqd.broker.topic import Topic
from nsqd.http.server import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsQuery:
    """The parameters of GET /stats."""

    is_json: bool = False
    topic_name: str = ""  # "" stands for all
    channel_name: str = ""
    has_clients: bool = True
    has_memory: bool = True

    @classmethod
    def from_request(cls, request: Request) -> "StatsQuery":
        """Read the query of a request.

        Raises:
            HttpError: 400 INVALID_REQUEST, it cannot be parsed.
        """
        return cls(
            is_json=request.find("format") == "json",
            topic_name=request.find("topic") or "",
            channel_name=request.find("channel") or "",
            has_clients=request.find("include_clients") not in ("false", "0"),
            has_memory=request.find("include_mem") not in ("false", "0"),
        )


def find_topics(broker: Broker, query: StatsQuery) -> list[Topic] | None:
    """Return the topics of a query in the order of their names; None if it names an unknown one."""
    if not query.topic_name:
        return [topic for _, topic in sorted(broker.topics.items())]
    topic = broker.find_topic(query.topic_name)
    return None if topic is None else [topic]
