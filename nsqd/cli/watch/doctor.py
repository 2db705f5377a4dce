"""`nsq doctor`: look at a cluster from here, and say what is wrong with it.

It asks every nsqlookupd and nsqd, opens a TCP connection to each address that clients are sent to,
and looks twice, to see what rises. It changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Final

from diskqueue.tools.plain_text import escape_text
from nsqd.cli import arguments, loop
from nsqd.cli.cluster import Cluster
from nsqd.cli.output import CliError, ExitCode, plural, print_json, print_wrapped
from nsqd.cli.target import Node, Target, find_target
from nsqd.cli.watch.findings import Facts, Finding, find_all

EXAMPLES: Final = {
    "doctor": """examples:
  nsq doctor
  nsq doctor --fix
  nsq doctor -l lookup-1 -l lookup-2 --json"""
}
_DAY_S: Final = 86400.0


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq doctor`."""
    parser.add_argument("--fix", action="store_true", help="print commands that may mend it")
    parser.add_argument("--interval", type=arguments.duration, default=2.0, metavar="TIME",
                        help="between two looks (2s)")  # fmt: skip
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq doctor`; the exit code is 1 if something is wrong.

    Raises:
        CliError: there is no nsqd to look at.
    """
    return loop.run(_run(options), is_busy=False)


async def _run(options: argparse.Namespace) -> int:
    target = find_target(options)
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        if not nodes:
            raise CliError("no nsqlookupd knows an nsqd", ExitCode.MISSING)
        facts = await _look(cluster, target, nodes, options)
    findings = find_all(facts)
    problems = [each for each in findings if each.level == "problem"]
    _print(options, findings, len(nodes), len(facts.lookupds))
    return ExitCode.FAILED if problems else ExitCode.DONE


async def _look(
    cluster: Cluster, target: Target, nodes: Sequence[Node], options: argparse.Namespace
) -> Facts:
    facts = Facts()
    facts.lookupds, facts.stats, facts.metrics = await asyncio.gather(
        cluster.ask_lookupds("GET", "/nodes"),
        cluster.find_stats(nodes),
        cluster.ask("GET", nodes, "/metrics"),
    )
    facts.now_s = time.time()
    attempts = [_connect(node, options.timeout) for node in nodes]
    found = await asyncio.gather(*attempts)
    errors = zip(map(str, nodes), found, strict=True)
    facts.tcp_errors = {node: error for node, error in errors if error is not None}
    if target.tls is not None and target.tls.verifies:
        context = target.tls.make_context()
        days = await asyncio.gather(*(_read_days(node, context, options.timeout) for node in nodes))
        pairs = zip(map(str, nodes), days, strict=True)
        facts.certificate_days = {node: left for node, left in pairs if left is not None}
    await asyncio.sleep(options.interval)
    facts.later = await cluster.find_stats(nodes)
    return facts


async def _connect(node: Node, timeout_s: float) -> str | None:
    """Open a TCP connection, as a client would; return why that fails."""
    if node.tcp is None:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            if node.tcp.is_unix:
                _, writer = await asyncio.open_unix_connection(node.tcp.host)
            else:
                _, writer = await asyncio.open_connection(node.tcp.host, node.tcp.port)
    except OSError as error:  # TimeoutError is one
        return str(error) or "no answer in time"
    writer.close()
    return None


async def _read_days(node: Node, context: ssl.SSLContext, timeout_s: float) -> float | None:
    """Return for how many days the certificate of the HTTPS address is valid; None if unknown."""
    host, _, port = (node.http or "").rpartition("//")[2].rstrip("/").rpartition(":")
    if not port.isdigit():
        return None
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except OSError:
        return None  # The HTTP requests tell it already.
    certificate = writer.get_extra_info("peercert") or {}
    writer.close()
    ends = certificate.get("notAfter")
    return None if ends is None else (ssl.cert_time_to_seconds(ends) - time.time()) / _DAY_S


def _print(
    options: argparse.Namespace, findings: Sequence[Finding], node_count: int, lookupd_count: int
) -> None:
    if options.json:
        for each in findings:
            found = {"level": each.level, "where": each.where, "text": each.text, "fix": each.fix}
            print_json(found)
        return
    for each in findings:
        print_wrapped(f"{each.level:<8} ", escape_text(f"{each.where}: {each.text}"))
        if options.fix and each.fix:
            print(escape_text(f"           {each.fix}"))
    problems = sum(each.level == "problem" for each in findings)
    seen = f"{plural(node_count, 'nsqd')}, {plural(lookupd_count, 'nsqlookupd')}"
    print(f"{seen}: {plural(problems, 'problem') if problems else 'all is well'}")
