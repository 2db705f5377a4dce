"""An object store on loopback, of moto: one for all tests of a run, with a bucket for each."""

import itertools
import logging
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

KEYS = ("test-access", "test-s3cret-key")
_numbers = itertools.count()


@dataclass(frozen=True)
class Store:
    """One bucket, and how to reach it."""

    endpoint: str
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "eu-test-1",
            "s3.accessKey": KEYS[0],
            "s3.secretKey": KEYS[1],
        }

    @property
    def query(self) -> str:
        host = self.endpoint.partition("://")[2]
        return f"?endpoint_override={host}&scheme=http&region=eu-test-1"

    def open(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key=KEYS[0],
            secret_key=KEYS[1],
            endpoint_override=self.endpoint,
            region="eu-test-1",
        )

    def names(self) -> dict[str, int]:
        """The objects, with their sizes."""
        infos = self.open().get_file_info(fs.FileSelector(self.bucket, recursive=True))
        return {
            info.path.removeprefix(f"{self.bucket}/"): info.size
            for info in infos
            if info.type == fs.FileType.File
        }

    def upload(self, directory: Path, prefix: str) -> None:
        """Copy a directory."""
        opened = self.open()
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                name = f"{self.bucket}/{prefix}/{path.relative_to(directory)}"
                with opened.open_output_stream(name) as stream:
                    stream.write(path.read_bytes())


class S3Server:
    """The server, in threads of this process."""

    def __init__(self) -> None:
        server = pytest.importorskip("moto.server", reason="no moto: pip install 'moto[server]'")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server: Any = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"

    def make_store(self) -> Store:
        bucket = f"bucket-{next(_numbers)}"
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            return Store(self.endpoint, bucket)

    def stop(self) -> None:
        self._server.stop()
