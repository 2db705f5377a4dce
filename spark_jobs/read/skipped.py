"""The damaged places that tasks of a stream have skipped, counted on the driver (mode=PERMISSIVE).

A task that meets damage tells the driver the place, and the driver counts each once, also if Spark
runs the task again. Without a host that executors can reach, the places are in their logs only.
"""

import logging

from spark_jobs.tally import Tally, TallyClient

_logger = logging.getLogger(__name__)


class SkippedPlaces:
    """The driver's side, of one query; it listens from the first batch on."""

    def __init__(self, host: str | None) -> None:
        """Args: host: of the driver, as executors know it."""
        self._host = host
        self._tally: Tally | None = None

    def address(self) -> str:
        """Return where tasks tell what they skip; empty if nobody can listen."""
        if self._tally is None and self._host is not None:
            try:
                self._tally = Tally(self._host)
            except OSError as error:
                _logger.warning("skipped places are not counted host=%s %s", self._host, error)
                self._host = None
        return "" if self._tally is None else self._tally.address

    def count(self) -> int:
        """Return how many places tasks have told, each once."""
        return 0 if self._tally is None else len(self._tally.counts())

    def close(self) -> None:
        """Stop listening."""
        if self._tally is not None:
            self._tally.close()
            self._tally = None

    def __getstate__(self) -> dict[str, object]:
        """Leave the socket on the driver when Spark pickles the reader."""
        return {"_host": self._host, "_tally": None}


class SkipTeller:
    """A task's side: connects at the first place."""

    def __init__(self, address: str) -> None:
        """Args: address: as `SkippedPlaces.address` has it; empty: tell nobody."""
        self._address = address
        self._client: TallyClient | None = None

    def tell(self, path: str, offset: int, byte_count: int) -> None:
        """Tell the driver a place, and how many bytes are not read there."""
        if not self._address:
            return
        if self._client is None:
            self._client = TallyClient(self._address)
        self._client.tell(f"{path}@{offset}", byte_count)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
