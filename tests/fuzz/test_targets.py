"""No input of a corpus breaks its reader, nor does one that is cut off or has a byte changed.

`make fuzz` looks for new ones with libFuzzer. A failing input that it saved is mended and goes into
the corpus.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS

NEIGHBOURS_PER_TARGET = 400

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def test_every_target_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@every_target
def test_inputs_of_the_corpus(target: Target) -> None:
    corpus = target.corpus()

    assert len(corpus) >= 3
    for name, data in corpus.items():
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"corpus/{target.name}/{name}: {data.hex()}") from error


@every_target
def test_neighbours_of_the_corpus(target: Target) -> None:
    dice = random.Random(1)
    corpus = list(target.corpus().values())

    for _ in range(NEIGHBOURS_PER_TARGET):
        data = bytearray(dice.choice(corpus))[: target.max_bytes]
        if data and dice.random() < 0.7:
            data[dice.randrange(len(data))] = dice.choice(
                (0, 0x0A, 0x7F, 0xFF, dice.randrange(256))
            )
        if dice.random() < 0.5:
            del data[dice.randint(0, len(data)) :]
        try:
            target.run(bytes(data))
        except Exception as error:
            raise AssertionError(f"{target.name}: {data.hex()}") from error


PLANTED = """
from pathlib import Path
import atheris
from tests.fuzz.libfuzzer import fuzz
from tests.fuzz.target import Target

@atheris.instrument_func
def check(data: bytes) -> None:
    if data[:3] == b"NOP" and data[3:4] == b"!":
        raise KeyError("as a bug would")

fuzz(Target("planted", check, (b"NOP",)), seconds=30, seed=1, failures=Path({folder!r}))
"""


def test_libfuzzer_finds_a_planted_bug(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="the dependency group fuzz is not installed")

    done = subprocess.run(
        [sys.executable, "-c", PLANTED.format(folder=str(tmp_path))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "as a bug would" in done.stdout
    [saved] = (tmp_path / "planted").glob("crash-*")
    assert saved.read_bytes()[:4] == b"NOP!"
