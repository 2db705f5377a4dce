"""Tally: how far a run of `nsq pub` is, in numbers and in words."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nsqd.cli.output import ExitCode, note, plural, print_json, show_bytes


class Tally:
    """What of the input is published, what may be, and on which nodes."""

    def __init__(self, topic: str) -> None:
        """Begin at the first message."""
        self.topic = topic
        self.published = 0
        self.begun = 0  # messages that were handed to the client, the published ones included
        self.has_connected = False  # without a connection nothing that was begun has left
        self.empty = 0  # pieces of the input that are no messages
        self.resent = 0  # messages that may have arrived twice
        self.nodes: set[str] = set()  # the nsqds that have accepted messages
        # The exit code after a signal; no further input is read then.
        self.interrupt: ExitCode | None = None
        self._body_bytes = 0
        self._started = time.monotonic()

    def count(self, bodies: Sequence[bytes]) -> None:
        """Count messages as published."""
        self.published += len(bodies)
        self._body_bytes += sum(map(len, bodies))

    def certainty(self) -> str:
        """Say which messages are published for certain, and which may be."""
        parts = []
        if self.published:
            parts.append(f"lines 1-{self.published} are published")
        if self.begun > self.published and self.has_connected:
            parts.append(f"{self.published + 1}-{self.begun} may be")
        return ", ".join(parts) or "nothing is published"

    def show(self) -> str:
        """Return how far it is."""
        rate = self.published / max(time.monotonic() - self._started, 1e-9)
        text = f"{self.published:,} published to {self.topic}, {rate:,.0f}/s"
        text += f", {self.begun - self.published:,} not answered yet"
        return text + (f", {self.resent:,} sent twice" if self.resent else "")

    def report(self, *, is_json: bool, is_quiet: bool) -> None:
        """Print the summary."""
        lasted_s = time.monotonic() - self._started
        if is_json:
            print_json(
                {
                    "topic": self.topic,
                    "published": self.published,
                    "bytes": self._body_bytes,
                    "nodes": sorted(self.nodes),
                    "sent_twice": self.resent,
                    "empty": self.empty,
                    "seconds": round(lasted_s, 3),
                }
            )
            return
        note(
            f"{self.published:,} published to {self.topic} on {plural(len(self.nodes), 'node')},"
            f" {show_bytes(self._body_bytes)}, {self.resent:,} sent twice, {lasted_s:.1f} s",
            is_quiet=is_quiet,
        )
