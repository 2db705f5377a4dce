"""The house's arrows: which module may import which. A wrong one is a red test, not an opinion.

daemon -> api, stats, tcp, lookup -> http, runtime -> broker -> protocol -> diskqueue.envelope
                                                        `-----> diskqueue <----- spark_jobs
lookupd  ->  nsqd.config, nsqd.http, nsqd.protocol, nsqd.runtime
nsqd.api ->  console                                                   (it imports nothing)
nsqadmin ->  console, nsqd.config, nsqd.http, nsqd.protocol, nsqd.runtime      (nothing imports it)
cli      ->  nsqd.client, nsqd.http.client, nsqd.config, nsqd.protocol       (no daemon imports it)
client   ->  nsqd.protocol, nsqd.http.client, diskqueue.envelope       (no daemon imports it)
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("console", "diskqueue", "lookupd", "nsqadmin", "nsqd", "spark_jobs")
MAX_FILE_LINES = 800
MAX_CLASS_METHODS = 25
MAX_FOLDER_MODULES = 15
MAX_MAP_LINES = 10
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Imported for type checkers only; it has no module at run time.
TYPING_ONLY = frozenset({"_typeshed"})


@dataclass(frozen=True)
class Layer:
    """What the modules below a name may import besides the standard library."""

    ours: tuple[str, ...] = ()
    third_party: tuple[str, ...] = ()
    # Of the standard library, what they may not.
    forbidden: tuple[str, ...] = ()


IO = ("asyncio", "socket", "ssl", "selectors", "socketserver", "http", "urllib.request")

# The longest name that fits a module is its layer.
LAYERS = {
    "console": Layer(("console",), forbidden=IO),
    "diskqueue": Layer(("diskqueue",), forbidden=(*IO, "concurrent", "multiprocessing")),
    "diskqueue.checksums.crc": Layer(third_party=("isal",)),
    "nsqd": Layer(),
    "nsqd.config": Layer(("nsqd.config", "diskqueue.tools.plain_text"), forbidden=("asyncio",)),
    "nsqd.protocol": Layer(
        ("nsqd.protocol", "diskqueue.envelope"),
        ("snappy",),
        (*IO, "time", "threading", "os", "logging"),
    ),
    # The limits of a topic are flags that single topics may override: one declaration for both.
    "nsqd.broker": Layer(
        ("nsqd.broker", "nsqd.protocol.names", "nsqd.config.limits", "diskqueue"), forbidden=IO
    ),
    "nsqd.runtime": Layer(
        (
            "nsqd.runtime",
            "nsqd.broker",
            "nsqd.config",
            "diskqueue.layout",
            "diskqueue.identity",
        )
    ),
    "nsqd.http": Layer(
        ("nsqd.http", "nsqd.runtime", "nsqd.protocol", "nsqd.config"), ("httptools",)
    ),
    "nsqd.tcp": Layer(
        ("nsqd.tcp", "nsqd.broker", "nsqd.protocol", "nsqd.runtime", "nsqd.http.client"),
        ("re2",),
    ),
    "nsqd.lookup": Layer(
        ("nsqd.lookup", "nsqd.broker", "nsqd.protocol", "nsqd.runtime", "nsqd.http.client")
    ),
    "nsqd.analytics": Layer(
        ("nsqd.analytics", "nsqd.broker", "nsqd.runtime", "nsqd.http.file_body", "diskqueue")
    ),
    # What stats, api and nobody else see of the daemon.
    "nsqd.drain": Layer(("nsqd.broker", "nsqd.runtime")),
    "nsqd.node": Layer(
        (
            "nsqd.analytics.service",
            "nsqd.broker",
            "nsqd.config.options",
            "nsqd.drain",
            "nsqd.lookup",
            "nsqd.runtime",
            "nsqd.stats.memory",
            "nsqd.tcp",
        )
    ),
    "nsqd.stats": Layer(
        (
            "nsqd.stats",
            "nsqd.node",
            "nsqd.broker",
            "nsqd.tcp",
            "nsqd.runtime",
            "nsqd.config",
            "diskqueue.tools.plain_text",
        ),
        ("prometheus_client",),
    ),
    "nsqd.api": Layer(
        (
            "console",
            "nsqd.api",
            "nsqd.analytics",
            "nsqd.node",
            "nsqd.stats",
            "nsqd.http",
            "nsqd.broker",
            "nsqd.protocol",
            "nsqd.runtime",
            "nsqd.config",
        )
    ),
    "nsqd.settings": Layer(
        (
            "nsqd.broker",
            "nsqd.protocol",
            "nsqd.config",
            "nsqd.http",
            "nsqd.lookup",
            "nsqd.runtime",
            "nsqd.tcp",
        )
    ),
    "nsqd.reload": Layer(
        ("nsqd.config", "nsqd.http.client", "nsqd.node", "nsqd.runtime", "nsqd.settings")
    ),
    # For programs; the commands install the event loop that they want.
    "nsqd.client": Layer(
        (
            "nsqd.client",
            "nsqd.protocol.names",
            "nsqd.protocol.client_wire",
            "nsqd.protocol.compression",
            "nsqd.http.client",
            "diskqueue.envelope",
        )
    ),
    # The commands. rich is for terminals, and imported only there.
    "nsqd.cli": Layer(
        (
            *("nsqd.cli", "nsqd.client", "nsqd.http.client", "nsqd.config"),
            *("nsqd.protocol.names", "nsqd.protocol.client_wire", "diskqueue.tools.plain_text"),
        ),
        ("rich", "uvloop"),
    ),
    "nsqd.daemon": Layer(("nsqd",)),
    "nsqd.__main__": Layer(("nsqd.daemon", "nsqd.config"), ("uvloop",)),
    "lookupd": Layer(
        ("lookupd", "nsqd.config", "nsqd.http", "nsqd.protocol", "nsqd.runtime"),
        ("prometheus_client",),
    ),
    "lookupd.__main__": Layer(
        ("lookupd", "nsqd.config", "nsqd.http", "nsqd.protocol", "nsqd.runtime"), ("uvloop",)
    ),
    # A view of the cluster over HTTP: like any stranger, it knows no broker.
    "nsqadmin": Layer(
        ("nsqadmin", "console", "nsqd.config", "nsqd.http", "nsqd.protocol", "nsqd.runtime")
    ),
    "nsqadmin.__main__": Layer(("nsqadmin", "nsqd.config", "nsqd.runtime"), ("uvloop",)),
    # Told the time, and without I/O.
    "nsqadmin.cluster.figures": Layer(("nsqadmin.cluster", "nsqd.protocol.names"), forbidden=IO),
    "nsqadmin.cluster.merge": Layer(("nsqadmin.cluster.figures",), forbidden=(*IO, "time")),
    "nsqadmin.cluster.history": Layer(forbidden=(*IO, "time")),
    "nsqadmin.cluster.findings": Layer(("nsqadmin.cluster",), forbidden=(*IO, "time")),
    "spark_jobs": Layer(
        # The formats of the client only, which the bundle carries.
        ("spark_jobs", "diskqueue", "nsqd.protocol.client_wire", "nsqd.protocol.names"),
        ("pyspark", "py4j", "pyarrow", "numpy", "jinja2", "rich"),
    ),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return every module that a module imports anywhere, also inside functions."""
    return frozenset(_find_imports(module))


def _find_imports(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                # `from nsqd import logs` imports a module, `from nsqd import __version__` a value.
                name = f"{node.module}.{alias.name}"
                yield name if name in FILES else node.module


def layer_of(module: str) -> Layer:
    while module not in LAYERS:
        module = module.rpartition(".")[0]
    return LAYERS[module]


def is_below(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def is_allowed(importer: str, imported: str) -> bool:
    layer = layer_of(importer)
    top = imported.partition(".")[0]
    if top in PACKAGES:
        # What stands in nsqd/__init__.py, its versions, imports nothing: everybody may have it.
        is_version = imported == "nsqd" and not importer.startswith(("diskqueue", "spark_jobs"))
        return is_version or is_below(imported, layer.ours)
    if top in sys.stdlib_module_names:
        return not is_below(imported, layer.forbidden)
    return top in layer.third_party or top in TYPING_ONLY


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_module_imports_only_what_its_layer_may(module: str) -> None:
    assert sorted(name for name in imports_of(module) if not is_allowed(module, name)) == []


def importers_of(imported: str) -> set[str]:
    return {module for module in FILES if imported in imports_of(module)}


def test_nobody_imports_the_daemon_but_the_command() -> None:
    assert importers_of("nsqd.daemon") == {"nsqd.__main__"}
    assert importers_of("lookupd.daemon") == {"lookupd.__main__"}
    assert importers_of("nsqadmin.daemon") == {"nsqadmin.__main__"}


def test_uvloop_is_imported_only_by_the_commands() -> None:
    assert importers_of("uvloop") == {
        *("nsqd.__main__", "nsqd.cli.loop", "lookupd.__main__", "nsqadmin.__main__")
    }


def test_the_daemons_do_not_know_the_client() -> None:
    waiting = ["nsqd.__main__", "lookupd.__main__", "nsqadmin.__main__", "spark_jobs"]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += imports_of(module) & FILES.keys()

    assert not any(is_below(module, ("nsqd.client", "nsqd.cli")) for module in reached)


def test_nothing_imports_the_commands_and_rich_waits_for_a_terminal() -> None:
    importers = {
        module
        for module in FILES
        if any(is_below(name, ("nsqd.cli",)) for name in imports_of(module))
    }
    assert all(is_below(module, ("nsqd.cli",)) for module in importers)
    for module in FILES:
        tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
        names = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any("rich" in ast.unparse(node).split() for node in names), module


def test_nsqd_does_not_know_lookupd_and_neither_knows_spark() -> None:
    for module in FILES:
        if is_below(module, ("nsqd",)):
            strangers = ("lookupd", "nsqadmin")
            assert not any(is_below(name, strangers) for name in imports_of(module))
        if not module.startswith("spark_jobs"):
            assert not any(is_below(name, ("spark_jobs",)) for name in imports_of(module))


def test_lookupd_imports_four_packages_of_nsqd() -> None:
    lookupd = [module for module in FILES if is_below(module, ("lookupd",))]
    imported = frozenset().union(*map(imports_of, lookupd))
    # Besides the versions, which stand in nsqd/__init__.py.
    packages = {".".join(name.split(".")[:2]) for name in imported if name.startswith("nsqd.")}
    assert packages == {"nsqd.config", "nsqd.http", "nsqd.protocol", "nsqd.runtime"}


def test_nothing_of_lookupd_and_nsqadmin_needs_the_broker() -> None:
    waiting = [module for module in FILES if module.startswith(("lookupd", "nsqadmin"))]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += imports_of(module) & FILES.keys()

    assert not any(is_below(module, ("nsqd.broker", "nsqd.daemon")) for module in reached)


def test_libraries_stay_where_they_are() -> None:
    assert importers_of("isal.isal_zlib") == {"diskqueue.checksums.crc"}
    assert importers_of("httptools") == {"nsqd.http.parser", "nsqd.http.reply_parser"}
    assert importers_of("snappy") == {"nsqd.protocol.compression"}
    assert importers_of("re2") == {"nsqd.tcp.auth_patterns"}


def test_every_layer_of_the_table_exists() -> None:
    assert [name for name in LAYERS if name not in FILES] == []


def test_a_wrong_arrow_would_be_found() -> None:
    assert not is_allowed("diskqueue.queue", "asyncio")
    assert not is_allowed("diskqueue.queue", "nsqd.broker.channel")
    assert not is_allowed("nsqd.broker.channel", "asyncio.events")
    assert not is_allowed("nsqd.broker.channel", "nsqd.protocol.errors")
    assert not is_allowed("nsqd.broker.channel", "nsqd.tcp.connection")
    assert not is_allowed("nsqd.broker.channel", "nsqd.config.options")
    assert not is_allowed("nsqd.protocol.frames", "diskqueue.queue")
    assert not is_allowed("nsqd.protocol.frames", "time")
    assert not is_allowed("nsqd.tcp.connection", "nsqd.config.options")
    assert not is_allowed("nsqd.tcp.connection", "nsqd.daemon")
    assert not is_allowed("nsqd.tcp.connection", "uvloop")
    assert not is_allowed("nsqd.config.options", "nsqd.protocol.names")
    assert not is_allowed("lookupd.tcp", "nsqd.tcp.connection")
    assert not is_allowed("lookupd.registry", "nsqd.broker.topic")
    assert not is_allowed("lookupd.registry", "diskqueue")
    assert not is_allowed("spark_jobs.source", "nsqd")
    assert not is_allowed("nsqd.client.sync", "nsqd.broker.topic")
    assert not is_allowed("nsqd.client.sync", "uvloop")
    assert not is_allowed("nsqd.tcp.connection", "nsqd.client.connection")
    assert is_allowed("nsqd.tcp.connection", "nsqd")
    assert is_allowed("nsqd.broker.queue.backend", "diskqueue")


@pytest.mark.parametrize("folder", [*PACKAGES, "bench"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FILE_LINES} == {}


def test_no_class_has_too_many_methods() -> None:
    counts = {
        f"{module}.{node.name}": sum(isinstance(item, FUNCTIONS) for item in node.body)
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: count for name, count in counts.items() if count > MAX_CLASS_METHODS} == {}


FOLDERS = sorted({path.parent for path in FILES.values()})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_holds_what_one_person_keeps_in_mind(folder: Path) -> None:
    modules = [path.name for path in folder.glob("*.py") if not path.name.startswith("__")]

    assert len(modules) <= MAX_FOLDER_MODULES, modules


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_opens_with_its_map(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert text is not None
    named = set(re.findall(r"\w+", text))
    modules = {path.stem for path in folder.glob("*.py") if not path.name.startswith("__")}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}

    assert sorted((modules | packages) - named) == [], "not on the map"
    assert len(text.splitlines()) <= MAX_MAP_LINES


def test_lookupd_uses_four_packages_of_nsqd() -> None:
    used = {
        ".".join(name.split(".")[:2])
        for module in FILES
        if module.startswith("lookupd")
        for name in imports_of(module)
        if name.startswith("nsqd.")
    }
    assert used == {"nsqd.config", "nsqd.http", "nsqd.protocol", "nsqd.runtime"}
