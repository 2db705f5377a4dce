"""SmallDisk: a file system of a few megabytes, to be filled up."""

import errno
import os
import subprocess
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs; a context that unmounts it. Skips the test where mounting is not permitted."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command for a small disk")
        if done.returncode:
            pytest.skip(f"can't mount a small disk: {done.stderr.strip()}")

    def close(self) -> None:
        """Unmount it; whoever still has files open keeps them to itself."""
        subprocess.run(["umount", "-l", str(self.path)], timeout=10, check=True)

    @property
    def free_bytes(self) -> int:
        """What is left for everybody."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Have somebody else take the rest of the disk, to the last byte if nothing is left."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while self.free_bytes > leave_bytes:
                    ballast.write(bytes(min(65536, self.free_bytes - leave_bytes)))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def relieve(self) -> None:
        """Have somebody else give back what `fill` took."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """Have it take no more writes, as a disk does that the system no longer trusts."""
        self._remount("ro")

    def make_writable(self) -> None:
        """Have it take writes again."""
        self._remount("rw")

    def _remount(self, mode: str) -> None:
        command = ["mount", "-o", f"remount,{mode}", str(self.path)]
        subprocess.run(command, timeout=10, check=True)
