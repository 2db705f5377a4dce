"""Case 38: `nsq to-http` and `nsq_to_http`: what is finished was answered 2xx."""

import json
import socket

import pytest

from tests.cli.conftest import FindTool, Shell, drain, mpub, node, running
from tests.support.daemon_process import DaemonProcess
from tests.support.http_endpoint import Answer, HttpEndpoint
from tests.support.waiting import wait_until


def ok(_endpoint: HttpEndpoint, _target: str, _body: bytes) -> Answer:
    return 200, {}, b"thanks"


class ByBody:
    """Answers by the body: its status the first time, 200 from the second time on."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}

    def __call__(self, endpoint: HttpEndpoint, target: str, body: bytes) -> Answer:
        self.counts[body] = self.counts.get(body, 0) + 1
        word = body.decode()
        if word == "reset" and self.counts[body] <= 2:
            return 0, {}, b""  # Twice: on a connection that was kept, a request is sent again.
        if target == "/goal" or self.counts[body] > 1:
            return 200, {}, b""
        if word == "hang":
            endpoint.released.wait(20)
            return 0, {}, b""
        if word == "short":
            return 200, {"Content-Length": "100", "Connection": "close"}, b"not 100 bytes"
        if word == "slow":
            return 200, {"Slow": "0.05"}, b"whole, but slowly"
        headers = {"Location": "/goal"} if word[0] == "3" else {"Retry-After": "0"}
        return int(word), headers, b"body"


WORDS = [
    "200",
    "201",
    "204",
    "301",
    "307",
    "400",
    "429",
    "500",
    "503",
    "reset",
    "hang",
    "short",
    "slow",
]


def test_what_is_finished_was_accepted(shell: Shell, daemon: DaemonProcess) -> None:
    script = ByBody()
    with HttpEndpoint(script) as endpoint:
        mpub(daemon, "t", [word.encode() for word in WORDS])
        argv = ("to-http", "t", "--post", f"{endpoint.url}/in", "--json", "-a", node(daemon))
        # Delays of 90 s are not waited for: what has to come again is looked at in nsqd.
        more = ("--request-timeout", "2s", "--drop-on", "400", "--dead-letter", "t.dead",
                "--opt", "max_backoff_duration=0")  # fmt: skip
        with running(shell, "nsq", *argv, *more) as process:
            wait_until(lambda: script.counts.keys() >= {word.encode() for word in WORDS})
            deferred = {"301", "500", "reset", "hang", "short"}
            daemon.wait_for_channel(
                "t", "nsq_to_http", deferred_count=len(deferred), in_flight_count=0, depth=0
            )
        report = json.loads(process.stdout)

    accepted = {body.decode() for body in endpoint.accepted()} - {"short"}
    # 429 and 503 said when to come again, and came; 307 was followed; 400 is a dead letter.
    assert accepted == set(WORDS) - deferred - {"400"}
    dead = shell.nsq("tail", "t.dead", "--channel", "c", "-n", "1", "-a", node(daemon))
    assert dead == "400\n"
    assert (report["delivered"], report["dropped"]) == (7, 1)
    assert report["failed"] >= 7
    seen = next(each for each in endpoint.seen if each.body == b"200")
    assert seen.headers["X-NSQ-Topic"] == "t"
    assert seen.headers["X-NSQ-Attempts"] == "1"
    assert len(seen.headers["X-NSQ-Id"]) == 16
    assert seen.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("mode", ["hostpool", "round-robin", "epsilon-greedy", "all"])
def test_modes_with_a_host_down(shell: Shell, our_daemon: DaemonProcess, mode: str) -> None:
    bodies = [b"%d" % number for number in range(40)]
    with socket.socket() as unused, HttpEndpoint(ok) as one, HttpEndpoint(ok) as two:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        urls = (one.url, two.url) if mode == "all" else (one.url, dead, two.url)
        posts = [part for url in urls for part in ("--post", url)]
        mpub(our_daemon, "t", bodies)
        argv = ("to-http", "t", *posts, "--mode", mode, "-a", node(our_daemon), "--until-empty")
        shell.nsq(*argv)

    counts = [len(set(each.accepted())) for each in (one, two)]
    assert set(one.accepted()) | set(two.accepted()) == set(bodies)
    assert counts == [40, 40] if mode == "all" else all(counts)


def test_get_escapes_and_metadata_can_be_left_out(shell: Shell, our_daemon: DaemonProcess) -> None:
    with HttpEndpoint(lambda *_: (204, {}, b"")) as endpoint:
        shell.nsq("pub", "t", "a b&c\xff", "-a", node(our_daemon))
        url = f"{endpoint.url}/{{topic}}?q=%20&b={{body}}"
        argv = ("to-http", "t", "--get", url, "--no-metadata", "--header", "X-Mine: yes")
        shell.nsq(*argv, "-a", node(our_daemon), "--until-empty")

    [seen] = endpoint.seen
    assert (seen.method, seen.target) == ("GET", "/t?q=%20&b=a+b%26c%C3%BF")
    assert seen.headers["X-Mine"] == "yes"
    assert not any(name.lower().startswith("x-nsq") for name in seen.headers)


@pytest.mark.parametrize("kind", ["post", "get"])
def test_requests_are_those_of_go(
    shell: Shell, our_daemon: DaemonProcess, find_go_tool: FindTool, kind: str
) -> None:
    our_daemon.request("POST", "/topic/create?topic=t")
    found = {}
    with HttpEndpoint(ok) as endpoint:
        for channel in ("theirs", "ours"):
            our_daemon.request("POST", f"/channel/create?topic=t&channel={channel}")
        our_daemon.publish("t", b"one", b"two words & \xff%")
        flag = f"--post={endpoint.url}/in" if kind == "post" else f"--get={endpoint.url}/?a=%%20%s"
        at = f"--nsqd-tcp-address={our_daemon.tcp_address}"
        for channel, program in (("theirs", find_go_tool("nsq_to_http")), ("ours", "nsq_to_http")):
            argv = (flag, at, "--topic=t", f"--channel={channel}", "--header=X-A: b", "-n=1")
            with running(shell, program, *argv):
                drain(our_daemon, "t", channel, 2)
            found[channel] = sorted(
                (
                    each.method,
                    each.target,
                    each.body,
                    *(each.headers.get(name) for name in ("User-Agent", "Content-Type", "X-A")),
                )
                for each in endpoint.seen
            )
            endpoint.seen.clear()

    assert found["ours"] == found["theirs"]


def test_the_tool_takes_only_200_for_get(shell: Shell, our_daemon: DaemonProcess) -> None:
    with HttpEndpoint(lambda *_: (204, {}, b"")) as endpoint:
        mpub(our_daemon, "t", [b"x"])
        at = f"--nsqd-tcp-address={our_daemon.tcp_address}"
        with running(shell, "nsq_to_http", f"--get={endpoint.url}/%s", at, "--topic=t"):
            our_daemon.wait_for_channel("t", "nsq_to_http", deferred_count=1)


def test_a_sample_by_nsqd(shell: Shell, our_daemon: DaemonProcess) -> None:
    with HttpEndpoint(ok) as endpoint:
        mpub(our_daemon, "t", [b"%d" % number for number in range(400)])
        at = f"--nsqd-tcp-address={our_daemon.tcp_address}"
        with running(
            shell, "nsq_to_http", f"--post={endpoint.url}", at, "--topic=t", "--sample=0.5"
        ) as process:
            our_daemon.wait_for_channel("t", "nsq_to_http", depth=0, in_flight_count=0)

    assert 100 < len(endpoint.accepted()) < 300
    assert process.stdout == b""
