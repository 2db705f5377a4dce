"""Options that have the names and meanings of spark-sql-kafka, translated to ours.

subscribe             topic, but names only       subscribePattern   a regular expression
startingOffsets       earliest, latest (streams), or offsets as JSON, as `queues` shows them
endingOffsets         latest, or offsets as JSON; batches only
startingTimestamp     since; a new stream begins with the first message of that time
endingTimestamp       until; batches only
maxOffsetsPerTrigger  maxRowsPerTrigger
"""

import re
from collections.abc import Mapping

KAFKA_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
)
_SAME = {"subscribe": "topic", "maxoffsetspertrigger": "maxrowspertrigger"}
_NAMES = re.compile(r"[^*?\[]*")


def translate(given: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
    """Return the options with our names for those of Kafka's that mean the same.

    Raises:
        ValueError: an option is given under both names, or makes no sense.
    """
    options = dict(given)
    if not _NAMES.fullmatch(given.get("subscribe", "")):
        raise ValueError("option subscribe has names of topics; subscribePattern or topic patterns")
    for name, ours in _SAME.items():
        _rename(options, name, ours)
    if "topic" in options and "subscribepattern" in options:
        raise ValueError("options topic, subscribe and subscribePattern exclude each other")
    _translate_start(options, is_stream=is_stream)
    ending = options.get("endingoffsets", "latest").strip()
    if is_stream and ("endingoffsets" in options or "endingtimestamp" in options):
        raise ValueError("a stream has no end: endingOffsets and endingTimestamp are for batches")
    if ending == "latest":
        options.pop("endingoffsets", None)
    elif not ending.startswith("{"):
        raise ValueError(f"option endingOffsets is latest or offsets as JSON, not {ending!r}")
    _rename(options, "endingtimestamp", "until")
    if not is_stream:
        _rename(options, "startingtimestamp", "since")
    return options


def _translate_start(options: dict[str, str], *, is_stream: bool) -> None:
    start = options.get("startingoffsets", "{").strip()
    if start.startswith("{"):
        return
    origin = options.get("from", start).lower()
    if start == "latest":
        if not is_stream:
            raise ValueError("startingOffsets=latest is for streams")
        options["starts_at_end"] = "true"
    elif start != "earliest":
        raise ValueError(
            f"option startingOffsets is earliest, latest or offsets as JSON, not {start!r}"
        )
    if origin not in (start, "archive"):
        raise ValueError(f"options from={origin} and startingOffsets={start} exclude each other")
    del options["startingoffsets"]
    options["from"] = origin


def _rename(options: dict[str, str], name: str, ours: str) -> None:
    if name in options:
        if ours in options:
            raise ValueError(f"options {name} and {ours} mean the same; give one of them")
        options[ours] = options.pop(name)
