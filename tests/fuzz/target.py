"""Target: one reader of untrusted bytes, the promises it keeps, and the inputs kept for it.

A target's `check` takes bytes and returns, however broken they are. An exception that it lets out
is a failure, and so is an input that makes the process grow.
"""

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MAX_GROWTH_BYTES = 64 * 1024 * 1024


class GrowthError(AssertionError):
    """An input of some kilobytes took megabytes of memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader and the words that its format is made of, from which a fuzzer builds inputs."""

    name: str
    check: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()
    max_bytes: int = 4096

    @property
    def corpus_path(self) -> Path:
        """The folder of the inputs that every run of the tests replays."""
        return CORPUS / self.name

    def corpus(self) -> dict[str, bytes]:
        """Return the inputs that are kept, by name."""
        return {path.name: path.read_bytes() for path in sorted(self.corpus_path.iterdir())}

    def run(self, data: bytes) -> None:
        """Read one input.

        Raises:
            GrowthError: the process grew by more than MAX_GROWTH_BYTES.
            Exception: the reader broke a promise.
        """
        before = _peak_bytes()
        self.check(data)
        growth = _peak_bytes() - before
        if growth > MAX_GROWTH_BYTES:
            raise GrowthError(f"{growth >> 20} MB for {len(data)} bytes")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
