"""Client to server: bytes in, split anywhere, commands out.

    NAME [SP parameter]* LF [int32 size, size bytes]

The parser returns values and knows no connection: its owner feeds bytes and pulls one command after
the other, for as long as it likes. Whether a command is allowed at all depends on `admission`, a
value that the owner replaces between two commands.

The most frequent commands are recognised in bulk and come out as one value: PUBs to one topic
(`Publish`), DPUBs to one topic with one delay (`DeferredPublish`), the messages of an MPUB
(`MultiPublish`), FINs (`Finish`), REQs with one delay (`Requeue`). All other bytes take the plain
path: one line, then the body that belongs to it.

An incomplete command is kept until the bytes that it needs have come, and is not looked at before.
The order of the checks is nsqd's: the first that fails is the error that the client gets.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import ClassVar, NoReturn

from nsqd.protocol import command_lines
from nsqd.protocol.command_lines import MESSAGE_ID_BYTES, WHOLE_LINE_READERS, CommandLimits
from nsqd.protocol.commands import (
    Admission,
    Auth,
    ClientState,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    MultiPublishBegun,
    Progress,
    Publish,
    Requeue,
)
from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.go_json import MAX_OBJECT_BYTES

MAGIC = b"  V2"
SIZE_BYTES = 4
MAX_LINE_BYTES = 16384  # with its LF; nsqd's read buffer
# A secret becomes part of a URL: to quote 5 MB of it, which --max-body-size would let pass, takes a
# second.
MAX_SECRET_BYTES = 4 * 1024
# How many commands ahead the parser looks for a run. Bytes that turn out to be no run have been
# read in vain, so the distance doubles with each run found, and falls back to the minimum when
# there is none: looking ahead never costs more than a few times the runs it has found.
MIN_RUN_COUNT = 8
# A run is at most this long: its commands take about a millisecond.
MAX_RUN_COUNT = 1024
MAX_RUN_BYTES = 128 * 1024
# So many messages of an MPUB are read at once.
MAX_MPUB_PART_COUNT = 4096
# The rest of a chunk that is at least so large is not copied to be joined with a cut-off command.
MIN_AHEAD_BYTES = 16 * 1024
# The smallest message of an MPUB: its size and one byte.
_MIN_MPUB_MESSAGE_BYTES = SIZE_BYTES + 1

_LF, _CR, _SPACE = b"\n\r "

_PROGRESS = Progress()
# A client in this state may answer messages. Bound once: Python 3.11 takes 0.1 us to find it.
_SUBSCRIBED = ClientState.SUBSCRIBED

unpack_size = Struct(">i").unpack_from


class LineTooLongError(Exception):
    """No LF within MAX_LINE_BYTES; nsqd closes without an error frame."""


class _Incomplete(Exception):  # noqa: N818 - not an error: the rest is on its way
    """The command needs more bytes: `needed` of them, counted from its first one."""

    def __init__(self, needed: int, code: ErrorCode | None = None, text: str = "") -> None:
        self.needed = needed
        self.code = code  # of the error if the client stops here; None: there is no error
        self.text = text


class _OpenMpub:
    """An MPUB of which some messages have been read, and `remaining` have not."""

    __slots__ = ("bodies", "remaining", "room_bytes", "topic")

    def __init__(self, topic: str, remaining: int, room_bytes: int) -> None:
        self.topic = topic
        self.remaining = remaining
        self.room_bytes = room_bytes  # left of max-body-size for sizes and bodies
        self.bodies: list[bytes] = []

    def add(self, bodies: list[bytes], read_bytes: int) -> None:
        self.bodies += bodies
        self.remaining -= len(bodies)
        self.room_bytes -= read_bytes


class _Chunks:
    """The bytes of one connection that are not parsed yet."""

    def __init__(self) -> None:
        self._data = b""
        self._position = 0
        # Chunks that together are not a whole command yet, and how many bytes that would take.
        self._parts: list[bytes | memoryview] = []
        self._part_bytes = 0
        self._needed = 0
        self._waiting: _Incomplete | None = None
        # A chunk whose first bytes completed a command, and the position behind them.
        self._ahead = b""
        self._ahead_position = 0

    @property
    def error_at_eof(self) -> FatalClientError | None:
        """The error of a client that stops here: None unless it stops in the middle of a body."""
        if self._waiting is None or self._waiting.code is None:
            return None
        return FatalClientError(self._waiting.code, self._waiting.text)

    def release_rest(self) -> bytes:
        """Return the bytes that are not parsed yet and forget them: they are no commands."""
        rest = b"".join(self._parts) or self._take_rest()
        self._parts.clear()
        self._data = b""
        self._position = 0
        return rest

    def _append(self, data: bytes) -> None:
        """Append bytes to those that wait."""
        if self._parts:
            self._parts.append(data)
            self._part_bytes += len(data)
            if self._part_bytes < self._needed:
                return
            data = self._join_parts(data)
        else:
            data = self._take_rest() + data
        self._data = data
        self._position = 0

    def _join_parts(self, last: bytes) -> bytes:
        """Join the parts of a command that was cut off, and a few bytes of the last chunk.

        The rest of a large chunk is read where it is: to copy 256 KB takes 20 us.
        """
        missing = self._needed - (self._part_bytes - len(last))
        if len(last) - missing >= MIN_AHEAD_BYTES and self.error_at_eof is not None:
            self._parts[-1] = memoryview(last)[:missing]  # copied once, by the join
            self._ahead = last
            self._ahead_position = missing
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def _go_ahead(self, incomplete: _Incomplete) -> None:
        """Complete the command that was cut off where the chunk ahead begins."""
        rest = self._data[self._position :]
        start = self._ahead_position
        stop = len(self._ahead)
        if not rest:
            self._data, self._position = self._ahead, start
        else:
            if incomplete.code is not None:  # in a body; how long a line is cannot be told
                stop = min(stop, start + incomplete.needed - len(rest))
            self._data, self._position = rest + self._ahead[start:stop], 0
        self._ahead_position = stop
        if stop == len(self._ahead):
            self._ahead = b""

    def _take_rest(self) -> bytes:
        rest = self._data[self._position :] + self._ahead[self._ahead_position :]
        self._ahead = b""
        return rest


class CommandParser(_Chunks):
    """The commands of one connection, after its magic."""

    def __init__(self, limits: CommandLimits, admission: Admission | None = None) -> None:
        super().__init__()
        self.admission = admission or Admission()
        # Whether the bytes fed last brought no command to its end, but only more of one begun
        # before. A client that sends a byte now and then does not count as heard from.
        self.is_dragging = False
        self._limits = limits
        self._mpub: _OpenMpub | None = None
        # The last PUB or DPUB: its line, line and size together, the size, and how long it is.
        self._pub_line = self._pub_start = b""
        self._pub_size = 0
        self._pub_stride = -1
        self.pub_topic = ""  # read by the owner after `find_lone_publish`, too
        self._pub_delay_ms: int | None = None  # of a PUB
        # The last MPUB.
        self._mpub_line = b""
        self._mpub_topic = ""
        # The last REQ: its line from the end of the message id on.
        self._req_end = b""
        self._req_delay_ms = 0
        self._pub_run_count = self._id_run_count = MIN_RUN_COUNT

    def feed(self, data: bytes) -> None:
        """Append bytes from the client."""
        self.is_dragging = self._waiting is not None or self._mpub is not None
        if self._mpub is not None and self._needed > SIZE_BYTES and self._parts:
            self._append_to_mpub(self._mpub, data)
        elif self._data or self._parts:
            self._append(data)
        else:
            self._data = data

    @property
    def is_mid_command(self) -> bool:
        """Whether the client has begun a command, and owes the rest of it."""
        return self._waiting is not None or self._mpub is not None

    def find_lone_publish(self, data: bytes) -> bytes | None:
        """Return the body if these bytes are exactly one PUB like the last one, to `pub_topic`.

        `feed` and `next_command` would make a `Publish` of it. A publisher that waits for each OK
        sends this, and the shortcut saves 1.5 us of the 3 that its PUB costs (bench: pub-sync).
        """
        if (
            len(data) == self._pub_stride
            and data.startswith(self._pub_start)
            and not (self._parts or self._data or self._mpub)
            and self._pub_delay_ms is None
        ):
            return data[-self._pub_size :]
        return None

    def next_command(self) -> Command | None:
        """Return the next command, None if that takes more bytes.

        A call takes less than a millisecond: it returns `Progress` instead of the whole of a long
        MPUB.

        Raises:
            FatalClientError: with the code and text for the client.
            LineTooLongError: the connection is to be closed without a word.
        """
        if self._position == len(self._data):
            if self._ahead:
                self._data, self._position = self._ahead, self._ahead_position
                self._ahead = b""
            elif self._mpub is None or self._parts:
                self._data = b""
                self._position = 0
                return None
        try:
            command = self._read_next()
        except _Incomplete as incomplete:
            if self._ahead:
                self._go_ahead(incomplete)
                return _PROGRESS
            data: bytes | memoryview = self._data
            self._part_bytes = len(data) - self._position
            if self._mpub is not None and self._part_bytes >= MIN_AHEAD_BYTES:
                data = memoryview(data)  # a shorter rest must not hold the whole chunk
            self._parts.append(data[self._position :])
            self._needed = incomplete.needed
            self._waiting = incomplete.with_traceback(None)  # whose frames hold the chunk
            self._data = b""
            self._position = 0
            return None
        if self._mpub is None and type(command) is not MultiPublishBegun:
            self.is_dragging = False
        return command

    @property
    def has_more(self) -> bool:
        """Whether `next_command` may have something to return without further bytes."""
        if self._position < len(self._data) or self._ahead:
            return True
        # A long MPUB may have been left where the bytes end.
        return self._mpub is not None and not self._parts

    def _done(self, position: int) -> None:
        self._position = position
        self._waiting = None

    def _read_next(self) -> Command:
        """Read a run, one command, or a part of a long one."""
        data = self._data
        position = self._position
        if self._mpub is not None:
            return self._continue_mpub(self._mpub)
        if self._pub_line and data.startswith(self._pub_line, position):
            return self._read_publish_run()
        if data.startswith(b"FIN ", position):
            ids = self._read_ids(b"FIN ", b"\n")
            if ids:
                return Finish(ids)
        elif self._mpub_line and data.startswith(self._mpub_line, position):
            return self._start_mpub(position + len(self._mpub_line))
        elif self._req_end and data.startswith(b"REQ ", position):
            ids = self._read_ids(b"REQ ", self._req_end)
            if ids:
                return Requeue(ids, self._req_delay_ms)
        return self._read_by_line()

    def _read_by_line(self) -> Command:
        data = self._data
        position = self._position
        end = data.find(b"\n", position, position + MAX_LINE_BYTES)
        if end < 0:
            have = len(data) - position
            if have >= MAX_LINE_BYTES:
                raise LineTooLongError(f"a line of more than {MAX_LINE_BYTES} bytes")
            raise _Incomplete(have + 1)
        line_end = end - 1 if end > position and data[end - 1] == 13 else end
        words = data[position:line_end].split(b" ")
        verb = words[0]
        if not self.admission.admits(verb):
            self._done(end + 1)
            return _PROGRESS
        read_line = WHOLE_LINE_READERS.get(verb)
        if read_line is not None:
            command = read_line(words, self._limits)
            if type(command) is Requeue:
                self._req_end = data[position + len(b"REQ ") + MESSAGE_ID_BYTES : end + 1]
                self._req_delay_ms = command.delay_ms
            self._done(end + 1)
            return command
        read = self._body_readers.get(verb)
        if read is None:
            raise FatalClientError(ErrorCode.E_INVALID, b"invalid command " + verb)
        return read(self, words, end + 1)

    # --- commands with a body, which begins at the position `body`

    def _read_identify(self, _words: list[bytes], body: int) -> Identify:
        return Identify(self._read_body("IDENTIFY", body, MAX_OBJECT_BYTES))

    def _read_auth(self, words: list[bytes], body: int) -> Auth:
        command_lines.check_auth(words)
        return Auth(self._read_body("AUTH", body, MAX_SECRET_BYTES))

    def _read_pub(self, words: list[bytes], body: int) -> Publish:
        topic = command_lines.read_pub(words)
        line = self._data[self._position : body]
        message = self._read_message("PUB", body)
        self.pub_topic = topic
        self._pub_delay_ms = None
        self._expect_pub(line, len(message))
        return Publish(topic, [message])

    def _read_dpub(self, words: list[bytes], body: int) -> DeferredPublish:
        topic, delay_ms = command_lines.read_dpub(words, self._limits)
        line = self._data[self._position : body]
        message = self._read_message("DPUB", body)
        self.pub_topic = topic
        self._pub_delay_ms = delay_ms
        self._expect_pub(line, len(message))
        return DeferredPublish(topic, delay_ms, [message])

    def _begin_mpub(self, words: list[bytes], body: int) -> MultiPublishBegun:
        """Read the line only: its bytes stay, and the next command begins with a known line."""
        topic = command_lines.read_mpub(words)
        self._mpub_line = self._data[self._position : body]
        self._mpub_topic = topic
        return MultiPublishBegun(topic)

    def _read_size(self, position: int, code: ErrorCode, text: str) -> int:
        if position + SIZE_BYTES > len(self._data):
            raise _Incomplete(position + SIZE_BYTES - self._position, code, text)
        size: int = unpack_size(self._data, position)[0]
        return size

    def _read_bytes(self, position: int, size: int, code: ErrorCode, text: str) -> bytes:
        end = position + size
        if end > len(self._data):
            raise _Incomplete(end - self._position, code, text)
        self._done(end)
        return self._data[position:end]

    def _read_body(self, verb: str, position: int, limit: int) -> bytes:
        """Read the body of an IDENTIFY or AUTH; its size is checked before it is waited for.

        Args:
            limit: below --max-body-size, which nsqd checks, and for which it has other words.
        """
        code = ErrorCode.E_BAD_BODY
        size = self._read_size(position, code, f"{verb} failed to read body size")
        maximum = self._limits.max_body_size
        if size > maximum:
            raise FatalClientError(code, f"{verb} body too big {size} > {maximum}")
        if size <= 0:
            raise FatalClientError(code, f"{verb} invalid body size {size}")
        if size > limit:
            raise FatalClientError(code, f"{verb} body too large {size} > {limit}")
        return self._read_bytes(position + SIZE_BYTES, size, code, f"{verb} failed to read body")

    def _read_message(self, verb: str, position: int) -> bytes:
        code = ErrorCode.E_BAD_MESSAGE
        size = self._read_size(position, code, f"{verb} failed to read message body size")
        maximum = self._limits.max_msg_size
        if size <= 0:
            raise FatalClientError(code, f"{verb} invalid message body size {size}")
        if size > maximum:
            raise FatalClientError(code, f"{verb} message too big {size} > {maximum}")
        text = f"{verb} failed to read message body"
        return self._read_bytes(position + SIZE_BYTES, size, code, text)

    # --- runs

    def _read_publish_run(self) -> Publish | DeferredPublish:
        """Read as many PUBs or DPUBs like the last one as are there, at least one."""
        data = self._data
        position = self._position
        stride = self._pub_stride
        maximum = min(MAX_RUN_COUNT, MAX_RUN_BYTES // stride)
        count = min((len(data) - position) // stride, self._pub_run_count, maximum)
        if count > 1 and data.startswith(self._pub_start, position):
            bodies = split_publishes(data, position, self._pub_start, self._pub_size, count)
            if bodies:
                self._pub_run_count = max(self._pub_run_count, 2 * count)
                self._done(position + count * stride)
                return _make_publish(self.pub_topic, self._pub_delay_ms, bodies)
            self._pub_run_count = MIN_RUN_COUNT
        line = self._pub_line
        verb = "PUB" if self._pub_delay_ms is None else "DPUB"
        first = self._read_message(verb, position + len(line))
        self._expect_pub(line, len(first))
        bodies, position = read_sized(
            *(data, self._position, len(data)),
            line=line,
            max_count=MAX_RUN_COUNT - 1,
            max_size=self._limits.max_msg_size,
        )
        self._done(position)
        return _make_publish(self.pub_topic, self._pub_delay_ms, [first, *bodies])

    def _expect_pub(self, line: bytes, size: int) -> None:
        """Remember a PUB or DPUB: the next one often has the same line and size."""
        self._pub_line = line
        self._pub_start = line + size.to_bytes(SIZE_BYTES, "big")
        self._pub_size = size
        self._pub_stride = len(self._pub_start) + size

    def _start_mpub(self, position: int) -> MultiPublish | Progress:
        code = ErrorCode.E_BAD_BODY
        size = self._read_size(position, code, "MPUB failed to read body size")
        maximum = self._limits.max_body_size
        if size <= 0:
            raise FatalClientError(code, f"MPUB invalid body size {size}")
        if size > maximum:
            raise FatalClientError(code, f"MPUB body too big {size} > {maximum}")
        position += SIZE_BYTES
        count = self._read_size(position, code, "MPUB failed to read message count")
        room_bytes = maximum - SIZE_BYTES
        if not 0 < count <= room_bytes // _MIN_MPUB_MESSAGE_BYTES:
            raise FatalClientError(code, f"MPUB invalid message count {count}")
        self._mpub = _OpenMpub(self._mpub_topic, count, room_bytes)
        self._done(position + SIZE_BYTES)
        return self._continue_mpub(self._mpub)

    def _continue_mpub(self, mpub: _OpenMpub) -> MultiPublish | Progress:
        """Read some messages of an MPUB.

        Its extent follows from the count and the sizes of its messages, not from its outer size.
        """
        if not mpub.remaining:  # the last one was cut off, and is joined
            self._mpub = None
            return MultiPublish(mpub.topic, mpub.bodies)
        data = self._data
        start = self._position
        end = min(len(data), start + mpub.room_bytes)
        max_count = min(mpub.remaining, MAX_MPUB_PART_COUNT)
        max_size = self._limits.max_msg_size
        bodies, position = read_sized(
            *(data, start, end), line=b"", max_count=max_count, max_size=max_size
        )
        if not bodies:
            self._refuse_mpub_message(len(mpub.bodies), mpub.room_bytes)
        mpub.add(bodies, position - start)
        self._done(position)
        if mpub.remaining:
            return _PROGRESS
        self._mpub = None
        return MultiPublish(mpub.topic, mpub.bodies)

    def _append_to_mpub(self, mpub: _OpenMpub, data: bytes) -> None:
        """Append bytes to a message of an MPUB that was cut off within its body.

        Once it is whole, it is joined to be that message, and the bytes behind it are read where
        they are. So it is copied once, as are the messages that were not cut off.
        """
        stop = self._needed - self._part_bytes
        self._parts.append(data)
        self._part_bytes += len(data)
        if self._part_bytes < self._needed:
            return
        self._parts[0] = memoryview(self._parts[0])[SIZE_BYTES:]
        self._parts[-1] = memoryview(data)[:stop]
        mpub.add([b"".join(self._parts)], self._needed)
        self._parts.clear()
        self._data = data
        self._done(stop)

    def _refuse_mpub_message(self, index: int, room_bytes: int) -> NoReturn:
        """Raise the reason why the next message of an MPUB can't be read."""
        code = ErrorCode.E_BAD_MESSAGE
        position = self._position
        size = self._read_size(position, code, f"MPUB failed to read message({index}) body size")
        maximum = self._limits.max_msg_size
        if size <= 0:
            raise FatalClientError(code, f"MPUB invalid message({index}) body size {size}")
        if size > maximum:
            raise FatalClientError(code, f"MPUB message too big {size} > {maximum}")
        if SIZE_BYTES + size > room_bytes:
            # The outer size lied. nsqd would read on, and hold as much as the client sends.
            maximum = self._limits.max_body_size
            extent = maximum - room_bytes + SIZE_BYTES + size
            raise FatalClientError(ErrorCode.E_BAD_BODY, f"MPUB body too big {extent} > {maximum}")
        text = "MPUB failed to read message body"
        raise _Incomplete(SIZE_BYTES + size, code, text)

    def _read_ids(self, start: bytes, end: bytes) -> list[bytes]:
        """Read FINs or REQs in bulk; no id if the next command has to be read by its line.

        Args:
            start, end: the line before and behind the message id.
        """
        position = self._position
        ids = split_ids(self._data, position, start, end, self._id_run_count)
        if ids is None:
            self._id_run_count = MIN_RUN_COUNT
        if not ids:
            return []
        count = len(ids)
        if 2 * count > self._id_run_count:
            self._id_run_count = min(2 * count, MAX_RUN_COUNT)
        if self.admission.state is not _SUBSCRIBED:
            self.admission.admits(start[:-1])
        self._done(position + count * (len(start) + MESSAGE_ID_BYTES + len(end)))
        return ids

    _body_readers: ClassVar[dict[bytes, Callable[["CommandParser", list[bytes], int], Command]]] = {
        b"PUB": _read_pub,
        b"MPUB": _begin_mpub,
        b"DPUB": _read_dpub,
        b"AUTH": _read_auth,
        b"IDENTIFY": _read_identify,
    }


def _make_publish(
    topic: str, delay_ms: int | None, bodies: list[bytes]
) -> Publish | DeferredPublish:
    return Publish(topic, bodies) if delay_ms is None else DeferredPublish(topic, delay_ms, bodies)


# Runs: many commands or messages of one kind, found in the bytes at once. A loop over single
# messages costs CPython about 0.5 us for each; a split or a strided slice in C costs a tenth of
# that. Each function below proves that the cut is the one that parsing message by message would
# give, and otherwise returns that there is no run. Errors are left to the parser.


def split_publishes(data: bytes, position: int, start: bytes, size: int, count: int) -> list[bytes]:
    """Cut up PUBs that all have the same line and size; return no body if some differ.

    Not by `bytes.split`, which takes up to 1.3 us for a body of 1 KB that has letters of the topic.

    Args:
        start: line and size of each of them, or the size alone for the messages of an MPUB.
        size: of each body.
        count: of the PUBs that the data must hold from `position` on.
    """
    parts = _find_unpacker(len(start), size, count)(data, position)
    return list(parts[1::2]) if parts[::2].count(start) == count else []


# One for 4,096 messages takes 260 KB, and to make it 11 ns for each.
@lru_cache(maxsize=32)
def _find_unpacker(
    start_bytes: int, size: int, count: int
) -> Callable[[bytes, int], tuple[bytes, ...]]:
    """Return the function that cuts bytes up into start, body, start, body and so on."""
    return Struct(f"{start_bytes}s{size}s" * count).unpack_from


def read_sized_in_python(
    data: bytes, position: int, end: int, *, line: bytes, max_count: int, max_size: int
) -> tuple[list[bytes], int]:
    """Read a series of (line, size, body) up to the first that is cut off or wrong.

    Args:
        end: no byte from here on is read.
        line: stands before each size; empty for the messages of an MPUB.
        max_size: of a body.

    Returns:
        The bodies, and the position behind the last one.
    """
    skip = len(line) + SIZE_BYTES
    bodies: list[bytes] = []
    if not line:
        bodies = split_equal(data, position, end, max_count=max_count, max_size=max_size)
        if bodies:
            position += len(bodies) * (SIZE_BYTES + len(bodies[0]))
    while len(bodies) < max_count and data.startswith(line, position):
        body = position + skip
        if body > end:
            break
        size = unpack_size(data, body - SIZE_BYTES)[0]
        if not 0 < size <= max_size or body + size > end:
            break
        position = body + size
        bodies.append(data[body:position])
    return bodies, position


try:
    from nsqd.protocol._compiled import read_sized as read_sized
except ImportError:  # there was no compiler; this takes 0.25 us a message, not 0.03
    read_sized = read_sized_in_python


def split_equal(
    data: bytes, position: int, end: int, *, max_count: int, max_size: int
) -> list[bytes]:
    """Cut up a series of (size, body) if all bodies are as long as the first; else return none.

    Args:
        end: no byte from here on is read.
        max_size: of a body.
    """
    prefix = data[position : position + SIZE_BYTES]
    size = int.from_bytes(prefix, "big")
    stride = SIZE_BYTES + size
    count = min(max_count, (end - position) // stride)
    if count < 2 or not 0 < size <= max_size:
        return []
    # Sizes that differ mostly do so in their last byte, and a look at those costs next to nothing.
    last_bytes = data[position + SIZE_BYTES - 1 : position + count * stride : stride]
    if last_bytes.count(prefix[-1]) != count:
        return []
    return split_publishes(data, position, prefix, size, count)


def split_ids(
    data: bytes, position: int, start: bytes, end: bytes, max_count: int
) -> list[bytes] | None:
    """Return the message ids of commands that are rows of one length; None if any row differs.

    The rows end where the column of LFs does. That each row is such a command and no more, the
    split proves: there are as many ids as rows, and no LF in them, so that each row has one LF, at
    its end, and is cut there.

    Args:
        start, end: the bytes of each row before and behind the message id; `end` ends with LF.
    """
    row_bytes = len(start) + MESSAGE_ID_BYTES + len(end)
    window = position + max_count * row_bytes
    ends = data[position + row_bytes - 1 : window : row_bytes]
    count = len(ends) - len(ends.lstrip(b"\n"))
    if not count:
        return []
    rows = data[position + len(start) : position + count * row_bytes - len(end)]
    ids = rows.split(end + start)
    joined = b"".join(ids)
    if (
        len(ids) != count
        # As numbers: `bytes in bytes` raises and drops an error first, which takes 0.15 us.
        or _SPACE in joined
        or _LF in joined
        or _CR in joined
        or not data.startswith(end, position + count * row_bytes - len(end))
    ):
        return None
    return ids
