"""Names of files: tokens, strftime's codes, revisions."""

import os
import socket
import time

import pytest

from nsqd.cli.sinks.files.names import FileNames, with_rev

MOMENT = 1_714_568_400.0  # 2024-05-01 13:00:00 UTC


def make(text: str, topic: str = "orders", **options: object) -> FileNames:
    return FileNames.make(text, topic, is_utc=True, **options)  # type: ignore[arg-type]


def test_the_default_name_is_that_of_nsq_to_file() -> None:
    names = make("<TOPIC>.<HOST><REV>.<DATETIME>.log")

    host = socket.gethostname().partition(".")[0]
    assert with_rev(names.at(MOMENT), 0) == f"orders.{host}-000000.2024-05-01_13.log"
    assert with_rev(names.at(MOMENT + 3600), 12) == f"orders.{host}-000012.2024-05-01_14.log"


def test_without_revisions_the_token_goes() -> None:
    assert make("<TOPIC><REV>.log", has_rev=False).at(MOMENT) == "orders.log"


def test_gz_is_added_once() -> None:
    assert make("<TOPIC><REV>.log", is_gzip=True).at(MOMENT) == "orders<REV>.log.gz"
    assert make("<TOPIC><REV>.gz", is_gzip=True).at(MOMENT) == "orders<REV>.gz"


def test_host_and_process() -> None:
    names = make("<HOST>.<PID><REV>", host_identifier="a-<SHORT_HOST>-<HOSTNAME>")

    name = socket.gethostname()
    wanted = f"a-{name.partition('.')[0]}-{name}.{os.getpid()}<REV>"
    assert names.at(MOMENT) == wanted


def test_text_is_text_and_only_known_codes_are_replaced() -> None:
    names = make("<DATETIME><REV>", datetime_format="v2-%Y%y%m%d %H%I%M%S %B%b%A%a %p%z%% %q %")

    wanted = "v2-202424" + "0501 13010000 MayMayWednesdayWed PM+0000% %q %<REV>"
    assert names.at(MOMENT) == wanted


def test_the_local_time_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-05:00")
    time.tzset()
    try:
        names = FileNames.make("<DATETIME><REV>", "t", datetime_format="%H %Z")
        assert names.at(MOMENT) == "18 XYZ<REV>"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "topic"),
    [("<TOPIC>.log", "t"), ("<TOPIC>/<REV>.log", ".."), ("a/../<REV>", "t"), ("<REV>/", "t")],
)
def test_names_that_cannot_be_used(text: str, topic: str) -> None:
    with pytest.raises(ValueError, match=r"<REV>|not the name"):
        make(text, topic)


def test_the_pattern_matches_names_of_other_times_and_processes() -> None:
    names = make("<TOPIC>.<PID><REV>.<DATETIME>.log", datetime_format="%Y/%m")

    match = names.pattern.fullmatch("orders.77-000012.2023/01.log")
    assert match is not None
    assert match[1] == "000012"
    assert names.pattern.fullmatch("others.77-000012.2023/01.log") is None
    assert names.pattern.fullmatch("orders.77-12.2023/01.log") is None
