"""The input of `nsq pub` as messages: at a delimiter, by sizes, from envelopes, by a template."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Final

from nsqd.cli.output import CliError, show_bytes

_MAX_PIECE_BYTES: Final = 64 << 20
_SIZE: Final = struct.Struct(">i")


class Splitter:
    """Cut a stream into pieces at a delimiter; empty ones are skipped and counted."""

    def __init__(self, delimiter: bytes) -> None:
        """Start at the beginning of a piece."""
        self.empty_count = 0
        self._delimiter = delimiter
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces that end in this data.

        Raises:
            CliError: a piece is larger than any nsqd takes.
        """
        *pieces, self._rest = (self._rest + data).split(self._delimiter)
        if len(self._rest) > _MAX_PIECE_BYTES:
            raise CliError(f"a message of more than {show_bytes(_MAX_PIECE_BYTES)}")
        return self._skip_empty(pieces)

    def finish(self) -> list[bytes]:
        """Return the last piece, which needs no delimiter."""
        return self._skip_empty([self._rest] if self._rest else [])

    def _skip_empty(self, pieces: list[bytes]) -> list[bytes]:
        kept = [piece for piece in pieces if piece]
        self.empty_count += len(pieces) - len(kept)
        return kept


class Unframer:
    """Cut a stream of bodies that stand behind their sizes."""

    empty_count = 0

    def __init__(self) -> None:
        """Start at a size."""
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that end in this data.

        Raises:
            CliError: a size is impossible.
        """
        rest = self._rest + data
        bodies = []
        position = 0
        while len(rest) - position >= _SIZE.size:
            (size,) = _SIZE.unpack_from(rest, position)
            if not 0 < size <= _MAX_PIECE_BYTES:
                raise CliError(f"a frame of {size} bytes")
            end = position + _SIZE.size + size
            if end > len(rest):
                break
            bodies.append(rest[position + _SIZE.size : end])
            position = end
        self._rest = rest[position:]
        return bodies

    def finish(self) -> list[bytes]:
        """Check that the last frame was whole.

        Raises:
            CliError: it was not.
        """
        if self._rest:
            raise CliError("the input ends within a frame")
        return []


def open_envelope(line: bytes) -> bytes:
    """Return the body of a line of `nsq tail --json`.

    Raises:
        CliError: it is none.
    """
    # Imported here, as below: lines and arguments need neither.
    import base64
    import json

    try:
        fields = json.loads(line)
        if "body_base64" in fields:
            return base64.b64decode(fields["body_base64"], validate=True)
        return str(fields["body"]).encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError) as error:
        raise CliError("a line that is no message of nsq tail --json") from error


def fill_template(template: str, count: int) -> Iterator[bytes]:
    """Yield bodies with the number, the time and an id in them."""
    import uuid

    for number in range(1, count + 1):
        body = template.replace("{n}", str(number))
        if "{now}" in body:
            body = body.replace("{now}", str(time.time_ns()))
        if "{uuid}" in body:
            body = body.replace("{uuid}", str(uuid.uuid4()))
        yield body.encode()
