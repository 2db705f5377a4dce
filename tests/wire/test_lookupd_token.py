"""nsqlookupd --auth-token-file: who may register, change and spoof, over TCP and HTTP (L-27)."""

import json
import logging
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import uvloop

from lookupd.options import Options
from nsqd.config.flags import ConfigError
from nsqd.config.logs import LogLevel
from nsqd.protocol.lookup import NsqdIdentity, encode_identify
from tests.support.http_client import fetch
from tests.support.lookupd_in_process import LookupdInProcess
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import until

IDENTITY = NsqdIdentity("nsqd.example", 4150, 4151, "1.3.0")
REFUSAL = b"E_UNAUTHORIZED IDENTIFY needs the token of this nsqlookupd"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("open-sesame\n")
    return path


@pytest.fixture
def guarded(token_file: Path) -> Iterator[LookupdInProcess]:
    with LookupdInProcess(uvloop.new_event_loop, auth_token_file=str(token_file)) as lookupd:
        yield lookupd


def find_outcome(nsqd: RunningDaemon) -> str | None:
    """Return why nsqlookupd refused nsqd, or that it is connected; None before that."""
    [peer] = nsqd.daemon.registration.peers
    return peer.last_error or ("connected" if peer.is_connected else None)


@pytest.mark.parametrize("token", ["", "open", "open-sesame2", "\u00e9", "x" * 60_000])
def test_an_nsqd_without_it_can_register_nothing(guarded: LookupdInProcess, token: str) -> None:
    with guarded.peer() as peer:
        peer.send(encode_identify(IDENTITY, token) + b"REGISTER spoofed ch\n")

        assert peer.read_reply() == REFUSAL
        assert peer.is_closed_by_server()

    assert guarded.get("/topics") == {"topics": []}
    assert guarded.get("/nodes") == {"producers": []}


def test_an_nsqd_with_it_registers_and_the_log_does_not_show_it(
    guarded: LookupdInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with guarded.peer() as peer:
        peer.send(encode_identify(IDENTITY, "open-sesame"))
        assert json.loads(peer.read_reply())["version"] == "1.3.0"
        assert peer.command(b"REGISTER t ch") == b"OK"

        assert guarded.get("/topics") == {"topics": ["t"]}
        assert "open-sesame" not in json.dumps(guarded.get("/debug")) + caplog.text


@pytest.mark.parametrize(
    "target",
    [
        "/topic/create?topic=t",
        "/topic/delete?topic=t",
        "/topic/tombstone?topic=t&node=n:1",
        "/channel/create?topic=t&channel=c",
        "/channel/delete?topic=t&channel=c",
        "/debug/freememory",
    ],
)
def test_changes_over_http_need_it(guarded: LookupdInProcess, target: str) -> None:
    refused = guarded.request("POST", target)
    assert (refused.status, refused.json()) == (401, {"message": "UNAUTHORIZED"})
    assert refused.headers["www-authenticate"] == 'Bearer realm="nsqlookupd"'

    allowed = fetch(
        ("127.0.0.1", guarded.daemon.http_port),
        "POST",
        target,
        headers={"Authorization": "Bearer open-sesame"},
    )
    assert allowed.status in (200, 404), allowed


def test_reading_does_not(guarded: LookupdInProcess) -> None:
    for target in ("/ping", "/info", "/topics", "/nodes", "/debug", "/metrics"):
        assert guarded.request("GET", target).status == 200
    assert guarded.request("GET", "/debug/pprof/cmdline").status == 401


def test_a_reload_reads_it_again(
    guarded: LookupdInProcess, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    token_file.write_text("shazam\n")
    guarded.reload()

    with guarded.peer() as peer:
        peer.send(encode_identify(IDENTITY, "shazam"))
        assert json.loads(peer.read_reply())["version"] == "1.3.0"
    with guarded.peer() as peer:
        peer.send(encode_identify(IDENTITY, "open-sesame"))
        assert peer.read_reply() == REFUSAL

    token_file.write_text("\n")
    guarded.reload()

    assert "RELOAD: failed, nothing has changed - " in caplog.text
    with guarded.peer() as peer:
        peer.send(encode_identify(IDENTITY, "shazam"))
        assert json.loads(peer.read_reply())["version"] == "1.3.0"


def test_a_reload_reads_the_config_file_again(caplog: pytest.LogCaptureFixture) -> None:
    """The log level changes; another option is named, and takes a restart."""
    warn = Options(config="x", log_level=LogLevel.WARN, broadcast_address="here")
    read: list[Options | ConfigError] = [
        warn,
        replace(warn, log_level=LogLevel.INFO, broadcast_address="there"),
        ConfigError("failed to load config file x"),
    ]

    def read_options() -> Options:
        options = read.pop(0)
        if isinstance(options, ConfigError):
            raise options
        return options

    with (
        caplog.at_level(logging.INFO),
        LookupdInProcess(uvloop.new_event_loop, config="x", read_options=read_options) as lookupd,
    ):
        lookupd.reload()
        assert logging.getLogger().level == logging.WARNING

        lookupd.reload()
        assert "RELOAD: --broadcast-address has changed, which takes a restart" in caplog.text

        lookupd.reload()
        assert "RELOAD: failed, nothing has changed - failed to load" in caplog.text
        assert logging.getLogger().level == logging.INFO


def test_without_the_option_everybody_may(lookupd: LookupdInProcess) -> None:
    with lookupd.peer() as peer:
        peer.send(encode_identify(IDENTITY, "ignored"))
        assert json.loads(peer.read_reply())["version"] == "1.3.0"
    lookupd.post("/topic/create?topic=t")


async def test_our_nsqd_sends_it(
    guarded: LookupdInProcess, start_nsqd: StartNsqd, token_file: Path, tmp_path: Path
) -> None:
    """One without it, or with another one, is told why and goes on without nsqlookupd."""
    other = tmp_path / "other"
    other.write_text("another")
    addresses = (f"127.0.0.1:{guarded.daemon.tcp_port}",)
    names = {"": "none", str(other): "other", str(token_file): "right"}
    for path, topic in names.items():
        os.mkdir(tmp_path / f"data-{topic}")
        nsqd = await start_nsqd(
            data_path=tmp_path / f"data-{topic}",
            lookupd_tcp_addresses=addresses,
            lookupd_auth_token_file=path,
        )
        await nsqd.publish(topic, b"x")
        error = await until(partial(find_outcome, nsqd))
        assert (REFUSAL.decode() in error) == (topic != "right"), error

    await until(lambda: guarded.get("/topics")["topics"] == ["right"])


def test_texts_of_an_identity_are_bounded(lookupd: LookupdInProcess) -> None:
    fields = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v"}
    for name in ("broadcast_address", "hostname", "version", "topology_zone", "topology_region"):
        for text, is_taken in (("x" * 255, True), ("x" * 256, False), ("\u00e9" * 128, False)):
            body = json.dumps(fields | {name: text}).encode()
            with lookupd.peer() as peer:
                peer.send(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
                reply = peer.read_reply()
            size = len(text.encode())
            refusal = f"E_BAD_BODY IDENTIFY {name} too large {size} > 255".encode()
            assert reply.startswith(b"{") if is_taken else reply == refusal
