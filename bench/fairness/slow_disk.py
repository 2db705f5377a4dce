"""A disk that takes 200 ms for each write to one topic's files: a library loaded into the daemon.

It stands in for the C library's write calls. A daemon that does not go through the C library, as
one in Go, is not slowed down: `SlowDisk.has_delayed` tells.
"""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.daemon_process import DaemonError
from bench.fairness.row import TOPIC

DELAY_MS: Final = 200

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void delay(int fd) {
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    if (!strstr(path, getenv("SLOW_DISK_FILES"))) return;
    close(open(getenv("SLOW_DISK_MARK"), O_CREAT | O_WRONLY, 0600));
    struct timespec pause = {0, atol(getenv("SLOW_DISK_MS")) * 1000000L};
    nanosleep(&pause, NULL);
}

#define SLOW(name, parameters, arguments)                                       \
    ssize_t name parameters {                                                   \
        static ssize_t(*real) parameters;                                       \
        if (!real) real = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);       \
        delay(fd);                                                              \
        return real arguments;                                                  \
    }

SLOW(write, (int fd, const void *data, size_t size), (fd, data, size))
SLOW(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
SLOW(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
SLOW(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
SLOW(pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
SLOW(pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
SLOW(pwritev2, (int fd, const struct iovec *parts, int count, off_t at, int flags),
     (fd, parts, count, at, flags))
SLOW(pwritev64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags),
     (fd, parts, count, at, flags))
"""


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """The library, built in a directory of its own."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a daemon must be started with."""
        return {
            "LD_PRELOAD": str(self.directory / "slow_disk.so"),
            "SLOW_DISK_FILES": f"/{TOPIC}",
            "SLOW_DISK_MARK": str(self.directory / "mark"),
            "SLOW_DISK_MS": str(DELAY_MS),
        }

    def has_delayed(self) -> bool:
        """Whether a write was delayed since it was built."""
        return (self.directory / "mark").exists()


@contextlib.contextmanager
def slow_disk() -> Iterator[SlowDisk]:
    """The library, built for this block.

    Raises:
        DaemonError: there is no C compiler, or it fails.
    """
    if shutil.which("cc") is None:
        raise DaemonError("a slow disk needs the C compiler cc")
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as directory:
        disk = SlowDisk(Path(directory))
        source = disk.directory / "slow_disk.c"
        source.write_text(_SOURCE)
        built = subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", f"{source.with_suffix('.so')}", f"{source}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise DaemonError(f"the library of a slow disk cannot be built: {built.stderr}")
        yield disk
