"""No input breaks a reader: those of the corpus first, then new ones for a few seconds each.

`FUZZ_SECONDS=60 pytest tests/fuzz -k wire` looks for longer, and `make fuzz` with guidance.
"""

import os

import pytest

from tests.fuzz.engine import FAILURES, Target, check_input, fuzz
from tests.fuzz.targets import TARGETS

SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@every_target
def test_inputs_of_the_corpus(target: Target) -> None:
    corpus = target.corpus()

    assert len(corpus) >= 3
    for name, data in corpus.items():
        try:
            check_input(target, data)
        except Exception as error:
            raise AssertionError(f"corpus/{target.name}/{name}: {data.hex()}") from error


@every_target
@pytest.mark.timeout(60 + 2 * SECONDS)
def test_new_inputs(target: Target) -> None:
    report = fuzz(target, seconds=SECONDS, seed=SEED)

    if report.error is not None:
        assert report.failure is not None
        text = f"seed {SEED}, input {report.run_count}, saved as {report.saved_as}"
        raise AssertionError(f"{text}: {report.failure.hex()}") from report.error
    assert report.run_count > len(target.corpus())


def test_a_failing_input_is_made_small_and_saved() -> None:
    def check(data: bytes) -> None:
        assert b"NOP" not in data, "as a bug would"

    target = Target("wire", check, (b"NOP",))

    report = fuzz(target, seconds=10, seed=1)

    assert report.failure == b"NOP"
    assert isinstance(report.error, AssertionError)
    assert report.saved_as is not None
    assert report.saved_as.parent == FAILURES / "wire"
    assert report.saved_as.read_bytes() == b"NOP"
    report.saved_as.unlink()


def test_an_input_that_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.engine.MAX_INPUT_S", 0.0)

    report = fuzz(TARGETS["nsqd_dat"], seconds=10, seed=1)

    assert report.error is not None
    assert "bytes" in str(report.error)
    assert report.saved_as is not None
    report.saved_as.unlink()


def test_the_same_seed_makes_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []

        def check(data: bytes, inputs: list[bytes] = inputs) -> None:
            inputs.append(data)
            assert len(inputs) < 200

        fuzz(Target("wire", check), seconds=10, seed=7)
        seen.append(inputs[:200])

    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 100
