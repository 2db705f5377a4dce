"""Hands a target to libFuzzer through atheris, which must be installed (`make fuzz` does that).

libFuzzer ends its process, so each target has one of its own. Inputs that reach new code stay in
`build/fuzz/<target>/found` and start the next run; an input that fails is saved beside that folder.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import atheris

from tests.fuzz.target import Target

FAILURES = Path(__file__).parents[2] / "build" / "fuzz"
PACKAGES = ["nsqd", "diskqueue", "lookupd"]
# For one input, of wall clock: thousands of times the usual, so that a busy machine is no failure.
INPUT_TIMEOUT_S = 20


@contextmanager
def guided_imports() -> Iterator[None]:
    """Instrument the modules of the product that are imported within: coverage guides libFuzzer."""
    with atheris.instrument_imports(include=PACKAGES):
        yield


def fuzz(target: Target, *, seconds: float, seed: int, failures: Path = FAILURES) -> NoReturn:
    """Look for an input that fails; end the process, with status 0 if there was none."""
    folder = failures / target.name
    found = folder / "found"
    found.mkdir(parents=True, exist_ok=True)
    # libFuzzer builds inputs from these words; it refuses a file without any.
    words = target.words or (b"\0",)
    dictionary = folder / "words.dict"
    dictionary.write_text("".join(f'"{_escape(word)}"\n' for word in words))
    flags = (
        *(f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-artifact_prefix={folder}/"),
        *(f"-max_len={target.max_bytes}", f"-timeout={INPUT_TIMEOUT_S}", f"-dict={dictionary}"),
        *("-print_final_stats=1", "-verbosity=0"),
    )
    corpora = [str(path) for path in (found, target.corpus_path) if path.is_dir()]
    atheris.Setup([sys.argv[0], *flags, *corpora], target.run)
    atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


def _escape(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)
