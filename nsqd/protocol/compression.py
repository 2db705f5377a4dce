"""Snappy and deflate as stream codecs, which IDENTIFY may put around a connection.

A codec belongs to one connection and holds both of its directions. Compressed input is untrusted
twice over: it may be garbage, which is a `CompressionError`, and it may be a bomb, so that a call
never returns more than it was told to and keeps the rest compressed until the next one.

A snappy stream is a series of chunks, the first of them the stream identifier:

    [ x ][ x  x  x ][ x  x  x  x ][ ... ]
    type  length     CRC-32C       snappy or plain data    (types 0x00 and 0x01)
          of the     masked, of
          rest       the plain data

A deflate stream is raw RFC 1951 without end; every flush is followed by an empty stored block.
"""

import struct
import zlib
from typing import ClassVar, Final, TypeAlias

import snappy

_STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEADER: Final = struct.Struct("<I")  # The type is the low byte, the length the other three.
_CHUNK_HEADER_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 4
_MAX_PLAIN_CHUNK_BYTES: Final = 65_536
# The size that 65536 bytes which do not compress can grow to, with their checksum. nsqd refuses
# larger chunks of every type, so no peer makes nsqd buffer more than this for one chunk.
_MAX_CHUNK_BYTES: Final = 32 + _MAX_PLAIN_CHUNK_BYTES + _MAX_PLAIN_CHUNK_BYTES // 6 + 4

# So many chunks are decompressed at once, which takes half a millisecond even if they are empty.
MAX_CHUNK_COUNT: Final = 256

_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_FIRST_SKIPPABLE: Final = 0x80
_IDENTIFIER: Final = 0xFF

_RAW_DEFLATE: Final = -zlib.MAX_WBITS


class CompressionError(Exception):
    """The peer's bytes are no valid compressed stream; nothing after them can be understood."""


class SnappyCodec:
    """Both directions of a connection in snappy's framing format."""

    # The most that should be encoded at once: 0.1 ms, and one chunk.
    max_encoded_bytes: ClassVar = _MAX_PLAIN_CHUNK_BYTES

    __slots__ = ("_compressor", "_decompressor", "_input", "_is_identified", "_output")

    def __init__(self) -> None:
        """Start two streams: the first `encode` opens ours, the peer opens the other."""
        # It cuts the data into chunks, stores those plainly that do not shrink by an eighth, and
        # puts the identifier before the first one.
        self._compressor = snappy.StreamCompressor()
        # It checks the checksums. It is only ever given whole chunks, because it would look through
        # an incomplete one again with each read, and has no bound on the bytes that it returns.
        self._decompressor = snappy.StreamDecompressor()
        self._is_identified = False
        # Chunks that wait: for their missing bytes, or for the caller to have room for them.
        self._input = bytearray()
        # Plain bytes that did not fit into the last answer; less than one chunk's worth.
        self._output = b""

    def encode(self, data: bytes) -> bytes:
        """Return the data as chunks of which the last is complete, ready to be sent."""
        compressed: bytes = self._compressor.compress(data)
        return compressed

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        """Return the next plain bytes, at most `max_bytes` of them.

        Args:
            data: received bytes; empty to go on with pending ones.
            max_bytes: positive.

        Raises:
            CompressionError: the data is garbage; the codec must not be used any more.
        """
        assert max_bytes > 0, "a decoder without room makes no progress"
        self._input += data
        if not self._output:
            self._output = self._decompress(self._measure_chunks(max_bytes))
        output = self._output
        if len(output) <= max_bytes:
            self._output = b""
            return output
        self._output = output[max_bytes:]
        return output[:max_bytes]

    @property
    def has_pending(self) -> bool:
        """Whether `decode` would return or refuse something without further input."""
        if self._output:
            return True
        waiting = self._input
        if len(waiting) < _CHUNK_HEADER_BYTES:
            return False
        chunk_bytes = int.from_bytes(waiting[1:_CHUNK_HEADER_BYTES], "little")
        return len(waiting) >= _CHUNK_HEADER_BYTES + chunk_bytes

    def _measure_chunks(self, max_bytes: int) -> int:
        """Return the length of the whole chunks at the front of the input that fit together.

        At most MAX_CHUNK_COUNT, as a chunk may hold nothing. The first is always among them, even
        if it alone holds more than fits.

        Raises:
            CompressionError: a chunk has a bad header.
        """
        waiting = self._input
        end = 0
        plain_bytes = 0
        for _ in range(MAX_CHUNK_COUNT):
            if len(waiting) - end < _CHUNK_HEADER_BYTES:
                break
            (header,) = _CHUNK_HEADER.unpack_from(waiting, end)
            kind = header & 0xFF
            chunk_bytes = header >> 8
            self._check_header(kind, chunk_bytes)
            next_chunk = end + _CHUNK_HEADER_BYTES + chunk_bytes
            if next_chunk > len(waiting):
                break
            plain_chunk_bytes = self._plain_size(kind, end + _CHUNK_HEADER_BYTES, next_chunk)
            if plain_bytes and plain_bytes + plain_chunk_bytes > max_bytes:
                break
            plain_bytes += plain_chunk_bytes
            end = next_chunk
        return end

    def _check_header(self, kind: int, chunk_bytes: int) -> None:
        # Checked as soon as it is seen: garbage must not make us wait for the rest of its chunk.
        if chunk_bytes > _MAX_CHUNK_BYTES:
            raise CompressionError(f"snappy chunk of {chunk_bytes} bytes")
        if kind == _IDENTIFIER:
            self._is_identified = True  # Some clients begin every command with one.
        elif not self._is_identified:
            raise CompressionError("snappy stream without identifier")
        elif _UNCOMPRESSED < kind < _FIRST_SKIPPABLE:
            raise CompressionError(f"unknown snappy chunk type {kind:#04x}")

    def _plain_size(self, kind: int, start: int, end: int) -> int:
        """Return how many plain bytes the chunk at these positions claims to hold."""
        if kind >= _FIRST_SKIPPABLE:
            return 0
        start += _CHECKSUM_BYTES
        if kind == _UNCOMPRESSED:
            return max(end - start, 0)
        size = 0
        for shift, byte in enumerate(self._input[start : min(start + 3, end)]):
            size |= (byte & 0x7F) << 7 * shift
            if byte < 0x80 and size <= _MAX_PLAIN_CHUNK_BYTES:
                return size
        raise CompressionError("snappy chunk of more than 65536 plain bytes")

    def _decompress(self, size: int) -> bytes:
        if not size:
            return b""
        chunks = bytes(memoryview(self._input)[:size])
        del self._input[:size]
        try:
            plain: bytes = self._decompressor.decompress(chunks)
        except (OSError, snappy.UncompressError) as error:
            raise CompressionError(str(error)) from error
        return plain


class DeflateCodec:
    """Both directions of a connection as raw deflate streams."""

    # The most that should be encoded at once: noise takes 0.6 ms at level 6.
    max_encoded_bytes: ClassVar = 16 * 1024

    __slots__ = ("_compressor", "_decompressor", "_is_full")

    def __init__(self, level: int) -> None:
        """Start two streams.

        Args:
            level: 1 (fast) to 9 (small), for the direction to the client.
        """
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE)
        self._decompressor = zlib.decompressobj(_RAW_DEFLATE)
        # Whether the last answer used all its room: zlib may then hold output of which no trace is
        # in the unconsumed input.
        self._is_full = False

    def encode(self, data: bytes) -> bytes:
        """Return the data compressed and flushed, ready to be sent."""
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        """Return the next plain bytes, at most `max_bytes` of them.

        Args:
            data: received bytes; empty to go on with pending ones.
            max_bytes: positive.

        Raises:
            CompressionError: the data is garbage, or the stream had ended before it; the codec must
                not be used any more.
        """
        assert max_bytes > 0, "zlib takes 0 for no limit"
        stream = self._decompressor
        if stream.eof and (data or stream.unused_data):
            raise CompressionError("data after the end of the deflate stream")
        if stream.unconsumed_tail:
            data = stream.unconsumed_tail + data
        try:
            plain = stream.decompress(data, max_bytes)
        except zlib.error as error:
            raise CompressionError(str(error)) from error
        self._is_full = len(plain) == max_bytes
        return plain

    @property
    def has_pending(self) -> bool:
        """Whether `decode` might return or refuse something without further input."""
        stream = self._decompressor
        return self._is_full or bool(stream.unconsumed_tail) or bool(stream.unused_data)


Codec: TypeAlias = SnappyCodec | DeflateCodec
