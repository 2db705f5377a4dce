"""FileNames: the names of the files of one topic.

    <TOPIC>.<HOST><REV>.<DATETIME>.log    orders.web-1-000000.2024-05-01_13.log

<REV> stays in a name until a file is opened, which takes the first number that is free. Text is
text: only the codes of strftime that nsq_to_file knows are replaced.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass, field
from typing import Final

REV: Final = "<REV>"
_CODE: Final = re.compile(r"%([BbmAadHIMSYypZz%])")
_REV_PATTERN: Final = r"-(\d{6,})"
_DATETIME: Final = "<DATETIME>"
_PID: Final = "<PID>"


@dataclass(slots=True)
class FileNames:
    """The format of one topic's names, everything but time and revision filled in."""

    template: str
    datetime_format: str = "%Y-%m-%d_%H"
    is_utc: bool = False
    # Matches the file names of all processes, of any time and revision.
    pattern: re.Pattern[str] = re.compile("")
    # The last answer: names are asked for with each batch, and change with the second.
    _second: int = field(default=-1, init=False)
    _name: str = field(default="", init=False)

    @classmethod
    def make(
        cls,
        filename_format: str,
        topic: str,
        *,
        datetime_format: str = "%Y-%m-%d_%H",
        host_identifier: str = "",
        has_rev: bool = True,
        is_gzip: bool = False,
        is_utc: bool = False,
    ) -> FileNames:
        """Fill in the parts that do not change.

        Raises:
            ValueError: <REV> is missing where it is needed, or the name leaves its directory.
        """
        hostname = socket.gethostname()
        short = hostname.partition(".")[0]
        host = host_identifier or "<SHORT_HOST>"
        host = host.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)
        name = filename_format
        if not has_rev:
            name = name.replace(REV, "")
        elif REV not in name:
            raise ValueError("missing <REV> in --filename-format")
        name = name.replace("<TOPIC>", topic).replace("<HOST>", host)
        if is_gzip and not name.endswith(".gz"):
            name += ".gz"
        if not name or name.endswith("/") or {".", ".."} & set(name.split("/")):
            raise ValueError(f"not the name of a file: {name!r}")
        template = name.replace(_PID, str(os.getpid()))
        return cls(template, datetime_format, is_utc, _make_pattern(name))

    def at(self, moment: float) -> str:
        """Return the name at a time; <REV> is still in it."""
        second = int(moment)
        if second != self._second:
            parts = time.gmtime(second) if self.is_utc else time.localtime(second)
            stamp = _CODE.sub(lambda code: _format(code[1], parts), self.datetime_format)
            self._name = self.template.replace(_DATETIME, stamp)
            self._second = second
        return self._name


def with_rev(name: str, rev: int) -> str:
    """Return the name of a revision."""
    return name.replace(REV, f"-{rev:06d}")


def _format(code: str, parts: time.struct_time) -> str:
    return "%" if code == "%" else time.strftime(f"%{code}", parts)


def _make_pattern(name: str) -> re.Pattern[str]:
    escaped = re.escape(name)
    for token, pattern in ((_DATETIME, ".*"), (_PID, r"\d+"), (REV, _REV_PATTERN)):
        escaped = escaped.replace(re.escape(token), pattern)
    return re.compile(escaped)
