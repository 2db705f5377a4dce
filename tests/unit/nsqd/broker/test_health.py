import errno

from nsqd.broker.health import METADATA, Health

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
IO_ERROR = OSError(errno.EIO, "Input/output error")


def test_it_is_healthy_until_something_fails() -> None:
    health = Health()

    assert (health.status, health.is_healthy) == ("OK", True)


def test_any_good_append_makes_up_for_one_that_was_refused() -> None:
    health = Health()
    health.wrote("a", NO_SPACE)
    assert health.status == "NOK - a: no space left on device"
    assert health.has_refused_write

    health.wrote("b", None)

    assert health.status == "OK"
    assert not health.has_refused_write


def test_a_sync_that_failed_counts_until_that_queue_syncs_again() -> None:
    health = Health()
    health.repeated("sync a", IO_ERROR)

    health.wrote("a", None)
    health.repeated("sync b", None)
    assert health.status == "NOK - sync a: input/output error"

    health.repeated("sync a", None)
    assert health.status == "OK"


def test_the_next_reason_is_told_when_the_first_is_over() -> None:
    health = Health()
    health.repeated("sync a", IO_ERROR)
    health.repeated("sync b", NO_SPACE)
    health.wrote("c", NO_SPACE)
    health.run_short("disk almost full")

    seen = []
    for source in ("sync a", "sync b"):
        seen.append(health.status)
        health.repeated(source, None)
    seen.append(health.status)
    health.wrote("c", None)
    seen.append(health.status)
    health.run_short(None)

    assert seen == [
        "NOK - sync a: input/output error",
        "NOK - sync b: no space left on device",
        "NOK - c: no space left on device",
        "NOK - disk almost full",
    ]
    assert health.is_healthy


def test_what_keeps_failing_is_told_of_once() -> None:
    health = Health()
    failures: list[str] = []
    health.on_failure = lambda: failures.append(health.status)

    health.repeated("sync a", IO_ERROR)
    health.repeated("sync a", NO_SPACE)
    health.repeated("sync a", None)

    assert failures == ["NOK - sync a: input/output error"]


def test_creating_makes_no_sense_while_nsqd_dat_fails_or_room_is_short() -> None:
    health = Health()
    health.repeated("sync a", IO_ERROR)
    assert health.find_creation_obstacle() is None

    health.wrote("a", NO_SPACE)
    assert health.find_creation_obstacle() == "a: no space left on device"
    health.wrote("a", None)
    health.repeated(METADATA, NO_SPACE)
    assert health.find_creation_obstacle() == "no space left on device"
    health.run_short("disk almost full")
    assert health.find_creation_obstacle() == "disk almost full"


def test_appends_that_succeed_are_told() -> None:
    health = Health()
    health.wrote("a", None)  # no listener yet
    calls: list[str] = []
    health.on_append = lambda: calls.append(health.status)

    health.wrote("a", NO_SPACE)
    assert calls == []
    health.wrote("a", None)
    health.wrote("b", None)

    assert calls == ["OK", "OK"]
