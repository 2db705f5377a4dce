"""Client to server: bytes in, whatever their split, commands out.

    NAME [SP parameter]* LF [int32 size, size bytes]

What clients send most is recognised in bulk, and comes out as one command: a run of PUBs to one
topic (`Publish`), an MPUB (`Publish`), a run of FINs (`Finish`). The tricks for that are
`_read_publish_run`, `_equal_bodies` and `_read_finish_run`; each proves what it assumes and leaves
everything else to the plain path, which parses one command line and then what belongs to it.

An incomplete command is kept until the bytes that it needs have come, and is not looked at before.
The order of the checks is nsqd's: the first that fails is the error that the client gets.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Protocol

from nsqd.protocol.commands import (
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from nsqd.protocol.errors import ErrorCode, FatalClientError, go_quote
from nsqd.protocol.names import decode_name

MAGIC = b"  V2"
MAX_LINE_BYTES = 16384  # with its LF; nsqd's read buffer
MESSAGE_ID_BYTES = 16
FINISH_ROW_BYTES = len(b"FIN ") + MESSAGE_ID_BYTES + 1
# How far ahead a run is looked for. What turns out not to be one has been looked at for nothing, so
# the distance doubles with each run that was one, and falls back to the least with the first that
# was not: looking ahead never costs more than a few times what it has found.
MIN_RUN_COUNT = 8
MAX_FINISH_RUN = 4096
MAX_RUN_BYTES = 128 * 1024

_unpack_int32 = Struct(">i").unpack_from
_DIGITS = re.compile(rb"[0-9]*")
_MAX_DIGITS = 20  # a uint64 has no more


class LineTooLongError(Exception):
    """No LF within MAX_LINE_BYTES; nsqd closes without an error frame."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """The options that commands are checked against."""

    max_msg_size: int
    max_body_size: int
    max_rdy_count: int
    max_defer_ms: int


class Gate(Protocol):
    """The connection's say in what may be parsed: nsqd checks its state before anything else."""

    def admit(self, verb: bytes) -> bool:
        """Let a command pass, or have it ignored (False).

        Raises:
            FatalClientError: it is not allowed in the connection's state.
        """

    def authorize(self, verb: str, topic: str) -> None:
        """Check an MPUB before its body is read.

        Raises:
            FatalClientError: the client may not publish to the topic.
        """


class _ShutGate:
    """The gate of a parser that is no longer used, so that parser and connection are no cycle."""

    def admit(self, verb: bytes) -> bool:
        return False

    def authorize(self, verb: str, topic: str) -> None:
        raise AssertionError("the parser is closed")


_SHUT = _ShutGate()


class _Incomplete(Exception):  # noqa: N818 - not an error: the rest is on its way
    """The command needs more bytes: `needed` of them, counted from its first one."""

    def __init__(self, needed: int, code: ErrorCode | None = None, text: str = "") -> None:
        self.needed = needed
        self.code = code  # what to say if they never come, None if nothing
        self.text = text


class _OpenMpub:
    """An MPUB of which some messages have been read, and `remaining` have not."""

    __slots__ = ("bodies", "remaining", "room_bytes", "topic")

    def __init__(self, topic: str, remaining: int, room_bytes: int) -> None:
        self.topic = topic
        self.remaining = remaining
        self.room_bytes = room_bytes  # what sizes and bodies may still take: max-body-size holds
        self.bodies: list[bytes] = []

    def add(self, bodies: list[bytes], read_bytes: int) -> None:
        self.bodies += bodies
        self.remaining -= len(bodies)
        self.room_bytes -= read_bytes


class CommandParser:
    """The commands of one connection, after its magic."""

    def __init__(self, limits: CommandLimits, gate: Gate) -> None:
        self._limits = limits
        self._gate: Gate = gate
        self._data = b""
        self._position = 0
        # Chunks that together are not a whole command yet, and how many bytes that would take.
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._needed = 0
        self._waiting: _Incomplete | None = None
        # Whether the last bytes brought no command to its end, but only more of one begun before:
        # who sends a byte now and then is not heard from.
        self.is_dragging = False
        self._mpub: _OpenMpub | None = None
        # The last PUB: its line, line and size together; and the last MPUB's line.
        self._pub_line = self._pub_start = b""
        self._pub_size = 0
        self._pub_stride = -1  # how long such a PUB is
        self._pub_topic = ""
        self._mpub_line = b""
        self._mpub_topic = ""
        self._pub_run_count = self._finish_run_count = MIN_RUN_COUNT

    @property
    def error_at_eof(self) -> FatalClientError | None:
        """What to tell a client that stops here: nothing, unless it is in the middle of a body."""
        if self._waiting is None or self._waiting.code is None:
            return None
        return FatalClientError(self._waiting.code, self._waiting.text)

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._parts:
            self._parts.append(data)
            self._part_bytes += len(data)
            if self._part_bytes < self._needed:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        elif self._position < len(self._data):
            data = self._data[self._position :] + data
        self._data = data
        self._position = 0

    def find_lone_publish(self, data: bytes) -> Publish | None:
        """Return what `feed` and `commands` would make of one PUB like the last, and nothing else.

        It is what a publisher that waits for each OK sends, and worth a short cut: 1 us of the 4
        that its PUB costs (bench: pub-sync).
        """
        if (
            len(data) == self._pub_stride
            and data.startswith(self._pub_start)
            and not (self._parts or self._data or self._mpub)
        ):
            return Publish("PUB", self._pub_topic, [data[-self._pub_size :]], 1)
        return None

    def close(self) -> None:
        """Let go of the connection and of what it sent; only `error_at_eof` may be asked after."""
        self.take_rest()
        self._gate = _SHUT

    def take_rest(self) -> bytes:
        """Give up what has not been parsed: from here on the stream means something else."""
        rest = b"".join(self._parts) or self._data[self._position :]
        self._parts.clear()
        self._data = b""
        self._position = 0
        return rest

    def commands(self) -> Iterator[Command]:
        """Parse what is there.

        Raises:
            FatalClientError: with the code and text for the client.
            LineTooLongError: the connection is to be closed without a word.
        """
        is_begun = self._waiting is not None or self._mpub is not None
        while self._position < len(self._data):
            try:
                command = self._next()
            except _Incomplete as incomplete:
                self._wait(incomplete)
                self.is_dragging = is_begun
                return
            is_begun = False
            if command is not None:
                yield command
        self.is_dragging = is_begun
        self._data = b""
        self._position = 0

    def _wait(self, incomplete: _Incomplete) -> None:
        rest = self._data[self._position :] if self._position else self._data
        self._parts.append(rest)
        self._part_bytes = len(rest)
        self._needed = incomplete.needed
        self._waiting = incomplete
        self._data = b""
        self._position = 0

    def _next(self) -> Command | None:
        data = self._data
        position = self._position
        if self._mpub is not None:
            return self._continue_mpub(self._mpub)
        if self._pub_line and data.startswith(self._pub_line, position):
            return self._read_publish_run()
        if data.startswith(b"FIN ", position):
            finish = self._read_finish_run()
            if finish is not None:
                return finish
        elif self._mpub_line and data.startswith(self._mpub_line, position):
            return self._start_mpub(self._mpub_topic, position + len(self._mpub_line))
        return self._read_command()

    def _read_command(self) -> Command | None:
        """Read one command by its line."""
        data = self._data
        position = self._position
        end = data.find(b"\n", position, position + MAX_LINE_BYTES)
        if end < 0:
            have = len(data) - position
            if have >= MAX_LINE_BYTES:
                raise LineTooLongError
            raise _Incomplete(have + 1)
        line_end = end - 1 if end > position and data[end - 1] == 13 else end
        parameters = data[position:line_end].split(b" ")
        verb = parameters[0]
        if not self._gate.admit(verb):
            self._done(end + 1)
            return None
        parse = self._parsers.get(verb)
        if parse is None:
            raise FatalClientError(ErrorCode.E_INVALID, b"invalid command " + verb)
        return parse(self, parameters, end + 1)

    def _done(self, position: int) -> None:
        self._position = position
        self._waiting = None

    # --- commands of one line

    def _parse_nop(self, _parameters: list[bytes], body: int) -> Nop:
        self._done(body)
        return Nop()

    def _parse_cls(self, _parameters: list[bytes], body: int) -> StartClose:
        self._done(body)
        return StartClose()

    def _parse_sub(self, parameters: list[bytes], body: int) -> Subscribe:
        if len(parameters) < 3:
            raise FatalClientError(ErrorCode.E_INVALID, "SUB insufficient number of parameters")
        topic = _topic_name("SUB", parameters[1])
        channel = decode_name(parameters[2])
        if channel is None:
            raise FatalClientError(
                ErrorCode.E_BAD_CHANNEL,
                f"SUB channel name {go_quote(parameters[2])} is not valid",
            )
        self._done(body)
        return Subscribe(topic, channel)

    def _parse_rdy(self, parameters: list[bytes], body: int) -> Ready:
        count = 1
        if len(parameters) > 1:
            count = _decimal(parameters[1], "RDY could not parse count")
        maximum = self._limits.max_rdy_count
        if count > maximum:
            raise FatalClientError(
                ErrorCode.E_INVALID, f"RDY count {count} out of range 0-{maximum}"
            )
        self._done(body)
        return Ready(count)

    def _parse_fin(self, parameters: list[bytes], body: int) -> Finish:
        message_id = _message_id("FIN", parameters, 2)
        self._done(body)
        return Finish([message_id])

    def _parse_touch(self, parameters: list[bytes], body: int) -> Touch:
        message_id = _message_id("TOUCH", parameters, 2)
        self._done(body)
        return Touch(message_id)

    def _parse_req(self, parameters: list[bytes], body: int) -> Requeue:
        message_id = _message_id("REQ", parameters, 3)
        delay_ms = _decimal(parameters[2], "REQ could not parse timeout")
        self._done(body)
        return Requeue(message_id, delay_ms)

    # --- commands with a body

    def _parse_identify(self, _parameters: list[bytes], body: int) -> Identify:
        return Identify(self._read_body("IDENTIFY", body))

    def _parse_auth(self, parameters: list[bytes], body: int) -> Auth:
        if len(parameters) != 1:
            raise FatalClientError(ErrorCode.E_INVALID, "AUTH invalid number of parameters")
        return Auth(self._read_body("AUTH", body))

    def _parse_pub(self, parameters: list[bytes], body: int) -> Publish:
        if len(parameters) < 2:
            raise FatalClientError(ErrorCode.E_INVALID, "PUB insufficient number of parameters")
        topic = _topic_name("PUB", parameters[1])
        line = self._data[self._position : body]
        message = self._read_message("PUB", body)
        self._pub_topic = topic
        self._expect_pub(line, len(message))
        return Publish("PUB", topic, [message], 1)

    def _parse_dpub(self, parameters: list[bytes], body: int) -> DeferredPublish:
        if len(parameters) < 3:
            raise FatalClientError(ErrorCode.E_INVALID, "DPUB insufficient number of parameters")
        topic = _topic_name("DPUB", parameters[1])
        delay_ms = _decimal(parameters[2], "DPUB could not parse timeout")
        maximum = self._limits.max_defer_ms
        if delay_ms > maximum:
            raise FatalClientError(
                ErrorCode.E_INVALID, f"DPUB timeout {delay_ms} out of range 0-{maximum}"
            )
        return DeferredPublish(topic, delay_ms, self._read_message("DPUB", body))

    def _parse_mpub(self, parameters: list[bytes], body: int) -> Publish | None:
        if len(parameters) < 2:
            raise FatalClientError(ErrorCode.E_INVALID, "MPUB insufficient number of parameters")
        topic = decode_name(parameters[1])
        if topic is None:
            # nsqd says the code twice, and clients have seen it for years.
            raise FatalClientError(
                ErrorCode.E_BAD_TOPIC,
                f"E_BAD_TOPIC MPUB topic name {go_quote(parameters[1])} is not valid",
            )
        self._gate.authorize("MPUB", topic)
        self._mpub_line = self._data[self._position : body]
        self._mpub_topic = topic
        return self._start_mpub(topic, body)

    def _read_size(self, position: int, code: ErrorCode, text: str) -> int:
        if position + 4 > len(self._data):
            raise _Incomplete(position + 4 - self._position, code, text)
        size: int = _unpack_int32(self._data, position)[0]
        return size

    def _read_bytes(self, position: int, size: int, code: ErrorCode, text: str) -> bytes:
        end = position + size
        if end > len(self._data):
            raise _Incomplete(end - self._position, code, text)
        self._done(end)
        return self._data[position:end]

    def _read_body(self, verb: str, position: int) -> bytes:
        code = ErrorCode.E_BAD_BODY
        size = self._read_size(position, code, f"{verb} failed to read body size")
        maximum = self._limits.max_body_size
        if size > maximum:
            raise FatalClientError(code, f"{verb} body too big {size} > {maximum}")
        if size <= 0:
            raise FatalClientError(code, f"{verb} invalid body size {size}")
        return self._read_bytes(position + 4, size, code, f"{verb} failed to read body")

    def _read_message(self, verb: str, position: int) -> bytes:
        code = ErrorCode.E_BAD_MESSAGE
        size = self._read_size(position, code, f"{verb} failed to read message body size")
        maximum = self._limits.max_msg_size
        if size <= 0:
            raise FatalClientError(code, f"{verb} invalid message body size {size}")
        if size > maximum:
            raise FatalClientError(code, f"{verb} message too big {size} > {maximum}")
        return self._read_bytes(position + 4, size, code, f"{verb} failed to read message body")

    # --- what is recognised in bulk

    def _read_publish_run(self) -> Publish:
        """Read as many PUBs to the last topic as are there, at least one.

        When they are all of the last one's size, splitting at line and size finds them at once:
        if every piece between is as long as the size says, the split is what parsing would give.
        """
        data = self._data
        start = self._pub_start
        stride = self._pub_stride
        maximum = MAX_RUN_BYTES // stride
        count = min((len(data) - self._position) // stride, self._pub_run_count, maximum)
        if count > 1 and data.startswith(start, self._position):
            end = self._position + count * stride
            bodies = data[self._position : end].split(start)
            del bodies[0]
            if len(bodies) == count and set(map(len, bodies)) == {self._pub_size}:
                self._pub_run_count = max(self._pub_run_count, 2 * count)
                self._done(end)
                return Publish("PUB", self._pub_topic, bodies, count)
            self._pub_run_count = MIN_RUN_COUNT
        first = self._read_message("PUB", self._position + len(self._pub_line))
        self._expect_pub(self._pub_line, len(first))
        bodies = [first, *self._sized_bodies(self._pub_line, len(data), len(data))]
        return Publish("PUB", self._pub_topic, bodies, len(bodies))

    def _expect_pub(self, line: bytes, size: int) -> None:
        """The next PUB may well have this line and a body of this size."""
        self._pub_line = line
        self._pub_start = line + size.to_bytes(4, "big")
        self._pub_size = size
        self._pub_stride = len(self._pub_start) + size

    def _sized_bodies(self, line: bytes, max_count: int, end: int) -> list[bytes]:
        """Read what follows as (line, size, body), of any size, as far as it is whole and right.

        Args:
            end: nothing beyond this position is read.
        """
        data = self._data
        maximum = self._limits.max_msg_size
        position = self._position
        skip = len(line) + 4
        bodies: list[bytes] = []
        while len(bodies) < max_count and data.startswith(line, position):
            body = position + skip
            if body > end:
                break
            size = _unpack_int32(data, body - 4)[0]
            if not 0 < size <= maximum or body + size > end:
                break
            position = body + size
            bodies.append(data[body:position])
        self._done(position)
        return bodies

    def _start_mpub(self, topic: str, position: int) -> Publish | None:
        code = ErrorCode.E_BAD_BODY
        size = self._read_size(position, code, "MPUB failed to read body size")
        maximum = self._limits.max_body_size
        if size <= 0:
            raise FatalClientError(code, f"MPUB invalid body size {size}")
        if size > maximum:
            raise FatalClientError(code, f"MPUB body too big {size} > {maximum}")
        count = self._read_size(position + 4, code, "MPUB failed to read message count")
        if not 0 < count <= (maximum - 4) // 5:
            raise FatalClientError(code, f"MPUB invalid message count {count}")
        self._mpub = _OpenMpub(topic, count, maximum - 4)
        self._done(position + 8)
        return self._continue_mpub(self._mpub)

    def _continue_mpub(self, mpub: _OpenMpub) -> Publish | None:
        """Read messages of an MPUB; its extent is what count and sizes say, not its outer size."""
        start = self._position
        mpub.add(self._equal_bodies(mpub.remaining, mpub.room_bytes), self._position - start)
        while mpub.remaining:
            start = self._position
            end = min(len(self._data), start + mpub.room_bytes)
            mpub.add(self._sized_bodies(b"", mpub.remaining, end), self._position - start)
            if mpub.remaining:
                message = self._read_mpub_message(len(mpub.bodies), mpub.room_bytes)
                mpub.add([message], len(message) + 4)
        self._mpub = None
        return Publish("MPUB", mpub.topic, mpub.bodies, 1)

    def _equal_bodies(self, remaining: int, room_bytes: int) -> list[bytes]:
        """Cut up the messages that are there if they are all as long as the next one.

        Every size field is at its place if each of the four bytes of the first one recurs at that
        stride, which four strided slices compare in C.
        """
        data = self._data
        position = self._position
        prefix = data[position : position + 4]
        size = int.from_bytes(prefix, "big")
        stride = size + 4
        count = min(remaining, min(len(data) - position, room_bytes) // stride)
        if count < 2 or not 0 < size <= self._limits.max_msg_size:
            return []
        end = position + count * stride
        for byte in range(4):
            if data[position + byte : end : stride].count(prefix[byte]) != count:
                return []
        self._done(end)
        return [data[start : start + size] for start in range(position + 4, end, stride)]

    def _read_mpub_message(self, index: int, room_bytes: int) -> bytes:
        code = ErrorCode.E_BAD_MESSAGE
        position = self._position
        size = self._read_size(position, code, f"MPUB failed to read message({index}) body size")
        maximum = self._limits.max_msg_size
        if size <= 0:
            raise FatalClientError(code, f"MPUB invalid message({index}) body size {size}")
        if size > maximum:
            raise FatalClientError(code, f"MPUB message too big {size} > {maximum}")
        if size + 4 > room_bytes:
            # The outer size lied. nsqd would go on, and hold whatever the client sends.
            maximum = self._limits.max_body_size
            extent = maximum - room_bytes + size + 4
            raise FatalClientError(ErrorCode.E_BAD_BODY, f"MPUB body too big {extent} > {maximum}")
        return self._read_bytes(position + 4, size, code, "MPUB failed to read message body")

    def _read_finish_run(self) -> Finish | None:
        """Read the FINs that are there as far as they are rows of 21 bytes, which a split cuts up.

        The rows end where the column of LFs does. That nothing else is in them, the split proves:
        each id has its length, and no space, CR or LF.
        """
        data = self._data
        position = self._position
        window = position + self._finish_run_count * FINISH_ROW_BYTES
        ends = data[position + FINISH_ROW_BYTES - 1 : window : FINISH_ROW_BYTES]
        count = len(ends) - len(ends.lstrip(b"\n"))
        if not count:
            return None
        rows = data[position + len(b"FIN ") : position + count * FINISH_ROW_BYTES - 1]
        ids = rows.split(b"\nFIN ")
        if (
            len(ids) != count
            or set(map(len, ids)) != {MESSAGE_ID_BYTES}
            or rows.count(b" ") != count - 1
            or rows.count(b"\n") != count - 1
            or b"\r" in rows
        ):
            self._finish_run_count = MIN_RUN_COUNT
            return None
        self._finish_run_count = min(max(self._finish_run_count, 2 * count), MAX_FINISH_RUN)
        self._gate.admit(b"FIN")
        self._done(position + count * FINISH_ROW_BYTES)
        return Finish(ids)

    _parsers: ClassVar[
        dict[bytes, Callable[["CommandParser", list[bytes], int], Command | None]]
    ] = {
        b"FIN": _parse_fin,
        b"RDY": _parse_rdy,
        b"REQ": _parse_req,
        b"PUB": _parse_pub,
        b"MPUB": _parse_mpub,
        b"DPUB": _parse_dpub,
        b"NOP": _parse_nop,
        b"TOUCH": _parse_touch,
        b"SUB": _parse_sub,
        b"CLS": _parse_cls,
        b"AUTH": _parse_auth,
        b"IDENTIFY": _parse_identify,
    }


def _topic_name(verb: str, raw: bytes) -> str:
    topic = decode_name(raw)
    if topic is None:
        raise FatalClientError(
            ErrorCode.E_BAD_TOPIC, f"{verb} topic name {go_quote(raw)} is not valid"
        )
    return topic


def _message_id(verb: str, parameters: list[bytes], wanted: int) -> bytes:
    if len(parameters) < wanted:
        raise FatalClientError(ErrorCode.E_INVALID, f"{verb} insufficient number of params")
    message_id = parameters[1]
    if len(message_id) != MESSAGE_ID_BYTES:
        raise FatalClientError(ErrorCode.E_INVALID, "invalid message ID")
    return message_id


def _decimal(raw: bytes, complaint: str) -> int:
    """Read a decimal of nsqd: digits only, none at all is 0."""
    if len(raw) > _MAX_DIGITS or _DIGITS.fullmatch(raw) is None:
        raise FatalClientError(ErrorCode.E_INVALID, complaint.encode() + b" " + raw)
    return int(raw or b"0")
