"""`nsq __complete`: names of topics, channels, nodes and contexts, for the scripts of a shell.

    nsq __complete topics -- nsq tail -a 10.0.0.1 or

It has 300 ms and never fails: a shell that waits for a word must not hang or show an error. Names
are kept for 10 s, for a user who presses the key again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nsqd.cli import contexts
from nsqd.cli.output import CliError, ExitCode

KINDS: Final = ("topics", "channels", "nodes", "contexts")
_PATIENCE_S: Final = 0.3
_KEPT_S: Final = 10.0
# bash expands a completed word: a name with $(...) in it would be run.
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_.:/#@+-]+")
# The flags that say where to ask; all have a value.
_WHERE: Final = {
    "-a": "nsqd",
    "--nsqd": "nsqd",
    "-l": "lookupd",
    "--lookupd": "lookupd",
    "--context": "context",
}


def complete(argv: Sequence[str]) -> int:
    """Print the names of a kind, one on a line."""
    if not argv or argv[0] not in KINDS:
        return ExitCode.USAGE
    names: list[str] = []
    with contextlib.suppress(CliError, OSError):
        names = _find(argv[0], argv[1:])
    print("\n".join(filter(_HARMLESS.fullmatch, names)))
    return ExitCode.DONE


def _find(kind: str, words: Sequence[str]) -> list[str]:
    if kind == "contexts":
        return list(contexts.load().contexts)
    where = read_where(words)
    path = _path_of_cache(where)
    kept = _read_cache(path)
    if kept is None:
        kept = _ask(where)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        temporary.replace(path)
    return [str(name) for name in kept.get(kind) or []]


def read_where(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags of a command line that say where nsqd is."""
    found: dict[str, list[str]] = {"nsqd": [], "lookupd": [], "context": []}
    for index, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name in _WHERE and (has_value or index + 2 < len(words)):
            # The last word is the one to complete.
            found[_WHERE[name]].append(value if has_value else words[index + 1])
    return found


def _path_of_cache(where: dict[str, list[str]]) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    keys = sorted(key for key in os.environ if key.startswith("NSQ"))
    state = [where, [(key, os.environ[key]) for key in keys], contexts.load().current]
    digest = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
    return Path(home) / "nsq" / f"names-{digest}.json"


def _read_cache(path: Path) -> dict[str, list[str]] | None:
    try:
        if time.time() - path.stat().st_mtime > _KEPT_S:
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) else None


def _ask(where: dict[str, list[str]]) -> dict[str, list[str]]:
    # Imported here: contexts are completed without any of it.
    import asyncio

    from nsqd.cli import arguments, loop
    from nsqd.cli.cluster import Cluster
    from nsqd.cli.figures import sum_channels, sum_topics
    from nsqd.cli.target import find_target

    parser = argparse.ArgumentParser()
    arguments.add_common(parser)
    options = parser.parse_args([])
    options.nsqd, options.lookupd = where["nsqd"], where["lookupd"]
    options.context = where["context"][-1] if where["context"] else None

    async def ask() -> dict[str, list[str]]:
        async with Cluster(find_target(options), _PATIENCE_S) as cluster:
            nodes = await cluster.find_nodes()
            stats = await cluster.find_stats(nodes)
        return {
            "topics": sorted(sum_topics(stats)),
            "channels": sorted(sum_channels(stats)),
            "nodes": list(map(str, nodes)),
        }

    async def ask_in_time() -> dict[str, list[str]]:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await ask()
        except TimeoutError:
            return {}

    return loop.run(ask_in_time(), is_busy=False)
