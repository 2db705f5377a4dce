"""Build hook: compile the inner loops, if there is a C compiler.

Without one, or without Python's headers, a pure wheel is made: Python does what it can of it.
`pip install` calls it, and so `make run` and `make test`. Rebuilt whenever the wheel is.
"""

import os
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    "diskqueue/_compiled.pyx",
    "nsqd/protocol/_compiled.pyx",
    "nsqd/runtime/_compiled.pyx",
)


# Behind each source: a module of an older one, after a `git pull`, is not imported.
CHECK = """

import os as _os
import zlib as _zlib

_source = _os.path.join(_os.path.dirname(__file__), "_compiled.pyx")
if _os.path.exists(_source):
    with open(_source, "rb") as _file:
        if _zlib.crc32(_file.read()) != NUMBER:
            raise ImportError("it is older than its source: `make .venv/.run` builds it anew")
"""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Put the compiled modules beside their sources, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the files of the wheel are gathered."""
        for name in SOURCES:
            source = Path(self.root, name)
            library = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
            # One of an older source must not stay; and a daemon that runs has it in memory.
            library.unlink(missing_ok=True)
            try:
                _compile(source, library, Path(self.directory, source.parent.name))
            except (OSError, subprocess.CalledProcessError) as error:
                self.app.display_warning(f"{name} is not compiled, Python does its work: {error}")
                continue
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            if version != "editable":
                path = library.relative_to(self.root).as_posix()
                build_data["force_include"][str(library)] = path


def _compile(source: Path, library: Path, directory: Path) -> None:
    """Compile a Cython module.

    Raises:
        OSError: there is no compiler.
        CalledProcessError: the compiler has failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    text = source.read_bytes()
    checked = directory / source.name
    checked.write_bytes(text + CHECK.replace("NUMBER", str(zlib.crc32(text))).encode())
    c_source = checked.with_suffix(".c")
    cython = [sys.executable, "-m", "cython", "-3", str(checked), "-o", str(c_source)]
    subprocess.run(cython, check=True)
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    linker = (sysconfig.get_config_var("LDSHARED") or "cc -shared").split()[1:]
    flags = ["-O2", "-fPIC", "-fvisibility=hidden", f"-I{sysconfig.get_path('include')}"]
    subprocess.run(
        [*compiler, *flags, *linker, str(c_source), "-o", str(library), "-ldl"], check=True
    )
