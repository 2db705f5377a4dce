"""NSQ's log lines, levels that change at run time, and readers of stderr that misbehave."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from nsqd.config import logs
from nsqd.config.logs import LineFormatter, LogFormat, LogLevel, StderrHandler, parse_log_format

ROOT = Path(__file__).parents[4]
LINE = re.compile(
    r"(?P<prefix>.*?)\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (?P<level>[A-Z]+): (?P<text>.*)"
)


@pytest.fixture(autouse=True)
def _restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reading descriptor and the writing stream of a pipe."""
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        yield reader, stream
        os.close(reader)


def parsed(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    found = []
    for line in capsys.readouterr().err.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, line
        found.append((match["prefix"], match["level"], match["text"]))
    return found


def record(text: str, *args: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("nsqd.test", level, __file__, 1, text, args, None)


def handler_on(stream: TextIO | None) -> StderrHandler:
    handler = StderrHandler(stream)
    handler.setFormatter(LineFormatter("[nsqd] "))
    return handler


class TestLines:
    def test_line_is_prefix_local_time_level_and_text(self) -> None:  # O-9
        logged = record("TCP: listening on %s", "127.0.0.1:4150")
        logged.created = 1763249307.011956
        local = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(1763249307))

        line = LineFormatter("[my-nsqd] ").format(logged)

        assert line == f"[my-nsqd] {local}.011956 INFO: TCP: listening on 127.0.0.1:4150"

    @pytest.mark.parametrize(
        ("level", "word"),
        [
            (logging.DEBUG, "DEBUG"),
            (5, "DEBUG"),
            (logging.INFO, "INFO"),
            (logging.WARNING, "WARNING"),
            (logging.ERROR, "ERROR"),
            (logging.CRITICAL, "FATAL"),
        ],
    )
    def test_level_words(
        self, capsys: pytest.CaptureFixture[str], level: int, word: str
    ) -> None:  # O-9
        handler_on(sys.stderr).handle(record("text", level=level))

        assert parsed(capsys) == [("[nsqd] ", word, "text")]

    def test_every_line_of_a_traceback_has_the_header(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.configure("[nsqd] ", LogLevel.INFO)

        try:
            raise RuntimeError("first\nsecond")
        except RuntimeError:
            logging.getLogger("nsqd.test").exception("it broke")

        lines = parsed(capsys)
        assert lines[0] == ("[nsqd] ", "ERROR", "it broke")
        assert lines[1][2] == "Traceback (most recent call last):"
        assert [text for _, _, text in lines[-2:]] == ["RuntimeError: first", "second"]

    def test_empty_text_is_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        handler_on(sys.stderr).handle(record(""))

        assert parsed(capsys) == [("[nsqd] ", "INFO", "")]

    def test_arguments_that_do_not_fit_are_told_in_the_log(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        handler_on(sys.stderr).handle(record("depth=%d", "many"))

        [(_, level, text)] = parsed(capsys)
        assert level == "ERROR"
        assert text.startswith("cannot format log message 'depth=%d' ('many',): ")


class TestJson:
    def test_a_record_is_one_object_on_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.configure("[nsqd] ", LogLevel.INFO, LogFormat.JSON)

        logging.getLogger("nsqd.test").warning("client(%s) - \u202e%s", "1.2.3.4:5", "a\nb\x1b[m")

        [line] = capsys.readouterr().err.splitlines()
        found = json.loads(line)
        assert line.isascii()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("time"))
        assert found == {
            "level": "warning",
            "logger": "nsqd.test",
            "message": "client(1.2.3.4:5) - \u202ea\nb\x1b[m",
        }

    def test_secrets_are_hidden_also_in_tracebacks(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.configure("[nsqd] ", LogLevel.INFO, LogFormat.JSON)

        try:
            raise RuntimeError("http://user:secret-1@auth/")
        except RuntimeError:
            logging.getLogger("nsqd.test").exception("http://user:secret-2@auth/ failed")

        [line] = capsys.readouterr().err.splitlines()
        found = json.loads(line)
        assert found["message"] == "http://***@auth/ failed"
        assert found["exception"].startswith("Traceback (most recent call last):\n")
        assert found["exception"].endswith("RuntimeError: http://***@auth/")
        assert "secret-" not in line

    def test_the_reason_of_a_failed_start_is_json_too(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.configure("[nsqd] ", LogLevel.FATAL, LogFormat.JSON)

        logs.fatal_line("nsqd", "failed to instantiate nsqd - reason")

        [line] = capsys.readouterr().err.splitlines()
        found = json.loads(line)
        assert (found["level"], found["logger"]) == ("fatal", "nsqd")
        assert found["message"] == "failed to instantiate nsqd - reason"

    def test_dropped_lines_are_counted_in_json(self) -> None:
        stream = io.StringIO()
        handler = StderrHandler(stream)
        handler.setFormatter(logs.JsonFormatter())
        handler.handle(record("depth=%d", "many"))

        found = json.loads(stream.getvalue())
        assert found["message"].startswith("cannot format log message")

    def test_only_known_formats_are_taken(self) -> None:
        assert parse_log_format("JSON") is LogFormat.JSON
        with pytest.raises(ValueError, match=r"invalid log format 'xml' \(text, json\)"):
            parse_log_format("xml")


class TestLevels:
    @pytest.mark.parametrize("level", LogLevel)
    def test_what_is_below_the_level_is_dropped(
        self, capsys: pytest.CaptureFixture[str], level: LogLevel
    ) -> None:  # O-10
        logs.configure("", level)

        for stdlib_level in (10, 20, 30, 40, 50):
            logging.getLogger("nsqd.test").log(stdlib_level, "text")

        words = ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]
        assert [word for _, word, _ in parsed(capsys)] == words[level - 1 :]

    def test_level_changes_at_run_time(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.configure("", LogLevel.INFO)
        logger = logging.getLogger("nsqd.test")

        logger.debug("one")
        logs.set_level(LogLevel.DEBUG)
        logger.debug("two")
        logs.set_level(LogLevel.FATAL)
        logger.error("three")

        assert [text for _, _, text in parsed(capsys)] == ["two"]

    def test_configuring_again_replaces_prefix_and_level(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.configure("[a] ", LogLevel.ERROR)
        logs.configure("[b] ", LogLevel.INFO)

        logging.getLogger("nsqd.test").info("once")

        assert parsed(capsys) == [("[b] ", "INFO", "once")]

    @pytest.mark.parametrize("text", ["debug", "Info", "WARN", "error", "fatal"])
    def test_parse_takes_any_case(self, text: str) -> None:
        assert logs.parse_log_level(text).name == text.upper()

    @pytest.mark.parametrize("text", ["loud", "", "warning", "1", " info"])
    def test_parse_refuses_other_names(self, text: str) -> None:
        with pytest.raises(ValueError, match=re.escape(f"invalid log level '{text}' (debug, ")):
            logs.parse_log_level(text)


class TestFatalLine:
    def test_program_is_the_prefix_whatever_was_configured(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.configure("[mine] ", LogLevel.FATAL)

        logs.fatal_line("nsqd", "failed to instantiate nsqd - reason")

        assert parsed(capsys) == [("[nsqd] ", "FATAL", "failed to instantiate nsqd - reason")]

    def test_level_word_can_differ(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.fatal_line("nsqlookupd", "Resolve failed", level="ERROR")

        assert parsed(capsys) == [("[nsqlookupd] ", "ERROR", "Resolve failed")]

    def test_without_stderr_nothing_happens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", None)

        logs.fatal_line("nsqd", "text")


class TestReaders:
    def test_lines_go_to_the_descriptor_at_once(self, pipe: tuple[int, TextIO]) -> None:
        reader, stream = pipe

        handler_on(stream).handle(record("topic=%s", "caf\u00e9 \udcff"))

        assert os.read(reader, 4096).endswith("INFO: topic=caf\u00e9 \\udcff\n".encode())

    def test_line_longer_than_a_chunk_arrives_whole(self, pipe: tuple[int, TextIO]) -> None:
        reader, stream = pipe

        handler_on(stream).handle(record("\n".join(["x" * 2000] * 5)))

        received = os.read(reader, 20_000)
        assert received.count(b"x") == 10_000
        assert received.endswith(b"\n")

    def test_reader_that_is_gone_is_ignored(self) -> None:
        reader, writer = os.pipe()
        with open(writer, "w") as stream:
            handler = handler_on(stream)
            os.close(reader)

            handler.handle(record("lost"))

            assert handler.write("lost too") is False

    def test_reader_that_is_gone_does_not_change_the_exit_code(self) -> None:
        program = (
            "import logging; from nsqd.config import logs; logs.configure('', logs.LogLevel.INFO);"
            " logging.getLogger('nsqd').info('lost'); logs.fatal_line('nsqd', 'lost too')"
        )
        reader, writer = os.pipe()
        os.close(reader)

        done = subprocess.run(
            [sys.executable, "-c", program], stderr=writer, cwd=ROOT, timeout=30, check=False
        )

        os.close(writer)
        assert done.returncode == 0

    def test_closed_stream_is_ignored(self) -> None:
        stream = io.StringIO()
        handler = handler_on(stream)
        stream.close()

        handler.handle(record("lost"))

        assert handler.write("lost too") is False

    def test_no_stderr_at_all(self) -> None:
        handler_on(None).handle(record("nowhere"))

    def test_stuck_reader_loses_lines_and_is_told_how_many(
        self, pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader, stream = pipe
        monkeypatch.setattr(logs, "PATIENCE_MS", 1)
        handler = handler_on(stream)
        while handler.write("y" * 4095):
            pass

        for number in range(3):
            handler.handle(record("lost %d", number))
        held = os.read(reader, 2**20)  # all there is: a pipe gives what it has
        handler.handle(record("heard"))

        assert b"lost" not in held
        lines = os.read(reader, 2**20).decode().splitlines()
        assert [line.partition(": ")[2] for line in lines] == ["log lines dropped count=3", "heard"]

    def test_stuck_reader_delays_only_the_first_line(
        self, pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, stream = pipe
        monkeypatch.setattr(logs, "PATIENCE_MS", 1)
        handler = handler_on(stream)
        while handler.write("y" * 4095):
            pass
        monkeypatch.setattr(logs, "PATIENCE_MS", 60_000)

        assert handler.write("dropped at once, or the test runs into its timeout") is False
