"""NsqdProcess: one data directory and the daemons that live on it, one after the other."""

import asyncio
import os
import signal
from pathlib import Path

from tests.support.daemon_process import find_ports, loopback_flags
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.runner import Run
from tests.support.faults.watched_disk import EXIT_BYPASSED
from tests.support.waiting import PATIENCE_S

_POLL_S = 0.003


class StartFailedError(Exception):
    """The daemon ended before it listened; the text is its log."""


class NsqdProcess:
    """nsqd on a directory: started, killed, stopped and started again."""

    def __init__(self, server: ForkServer, directory: Path, flags: tuple[str, ...] = ()) -> None:
        self.data_path = directory / "data"
        self.journal_path: Path | None = None
        self.switch_path = directory / "switch"
        self.flags = flags
        self.tcp_port = 0
        self.http_port = 0
        self.is_stopping = False  # it was asked to stop
        self._server = server
        self._directory = directory
        self._log_path = directory / "log"
        self._pid = 0
        self._life_count = 0
        self.data_path.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> str:
        """What the present daemon, or the last one, has logged."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    @property
    def journal_size(self) -> int:
        """The present position in the journal; 0 without one."""
        return self.journal_path.stat().st_size if self.journal_path is not None else 0

    def spawn(
        self,
        *,
        plan: tuple[str, ...] = (),
        has_journal: bool = False,
        has_switch: bool = False,
        is_on_stock_loop: bool = False,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Start a daemon without waiting for anything."""
        self._life_count += 1
        self.is_stopping = False
        self._log_path = self._directory / f"log.{self._life_count}"
        self.journal_path = None
        if has_journal:
            self.journal_path = self._directory / f"journal.{self._life_count}"
            self.journal_path.touch()
        how = Run(
            [*loopback_flags(data_path=self.data_path), *self.flags, *flags],
            list(plan),
            None if self.journal_path is None else str(self.journal_path),
            str(self.switch_path) if has_switch else None,
            is_on_stock_loop=is_on_stock_loop,
        )
        self._pid = self._server.spawn(how, self._log_path)

    async def wait_until_listening(self) -> None:
        """Return when it takes connections.

        Raises:
            StartFailedError: it ended instead.
        """
        async with asyncio.timeout(PATIENCE_S):
            while (ports := find_ports(self.log)) is None:
                if self.exit_code is not None:
                    raise StartFailedError(self.log)
                await asyncio.sleep(_POLL_S)
        self.tcp_port, self.http_port = ports

    async def start(self, **options: object) -> None:
        """Start it and wait until it listens; the options are those of `spawn`."""
        self.spawn(**options)  # type: ignore[arg-type]
        await self.wait_until_listening()

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        code = self._server.poll(self._pid)
        assert code != EXIT_BYPASSED, self.log
        return code

    async def wait(self) -> int:
        """Return its exit code when it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while (code := self.exit_code) is None:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(_POLL_S)
        return code

    async def kill(self) -> None:
        """End it with SIGKILL, if it still runs."""
        if self._pid and self.exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
            await self.wait()

    async def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        self.is_stopping = True
        os.kill(self._pid, signal.SIGTERM)
        return await self.wait()
