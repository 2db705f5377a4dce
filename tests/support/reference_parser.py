"""The V2 command grammar, read slowly: one command at a time, from bytes that are all there.

It knows no runs, no splits and no state between commands, so it can be compared with the spec by
eye. The tests hold nsqd.protocol.command_parser to it, for any split of any bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nsqd.protocol import commands
from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.command_parser import CommandParser
from nsqd.protocol.commands import Admission
from nsqd.protocol.errors import go_quote
from nsqd.protocol.names import decode_name

MAX_LINE_BYTES = 16384
TOO_LONG = b"the line is too long"

# One command, or one message of a run, as a tuple that can be compared.
Event = tuple[object, ...]


@dataclass
class Outcome:
    """What bytes mean: the events, then the error that ended them, or what EOF would say."""

    events: list[Event] = field(default_factory=list)
    error: bytes | None = None
    error_at_eof: bytes | None = None


class _Ended(Exception):  # noqa: N818 - the end of the bytes, not always an error
    def __init__(self, *, error: bytes | None = None, at_eof: bytes | None = None) -> None:
        self.error = error
        self.at_eof = at_eof


class AdmitAll(Admission):
    """Admits every command at any time: the grammar has no states."""

    def admits(self, verb: bytes) -> bool:
        return True


def pull(parser: CommandParser) -> Iterator[commands.Command]:
    """Return the commands of the bytes that the parser was fed."""
    return iter(parser.next_command, None)


def flatten(command: commands.Command) -> Iterator[Event]:
    """Take runs apart: how commands are grouped is not part of the grammar.

    Nor is the notice that an MPUB has begun, or is read in parts: the MPUB itself follows, if its
    bytes do.
    """
    match command:
        case commands.Publish(topic=topic, bodies=bodies):
            assert bodies
            yield from (("PUB", topic, body) for body in bodies)
        case commands.DeferredPublish(topic=topic, delay_ms=delay_ms, bodies=bodies):
            assert bodies
            yield from (("DPUB", topic, delay_ms, body) for body in bodies)
        case commands.MultiPublish(topic=topic, bodies=bodies):
            yield ("MPUB", topic, *bodies)
        case commands.MultiPublishBegun() | commands.Progress():
            return
        case commands.Finish(ids=ids):
            assert ids
            yield from (("FIN", message_id) for message_id in ids)
        case commands.Requeue(ids=ids, delay_ms=delay_ms):
            assert ids
            yield from (("REQ", message_id, delay_ms) for message_id in ids)
        case _:
            yield (command,)


class ReferenceParser:
    """Reads one byte string from its beginning to its end."""

    def __init__(self, limits: CommandLimits, data: bytes) -> None:
        self._limits = limits
        self._data = data
        self._position = 0

    def outcome(self) -> Outcome:
        """Return what the bytes mean."""
        outcome = Outcome()
        try:
            while self._position < len(self._data):
                outcome.events.append(self._read_command())
        except _Ended as ended:
            outcome.error = ended.error
            outcome.error_at_eof = ended.at_eof
        return outcome

    def _read_command(self) -> Event:
        end = self._data.find(b"\n", self._position)
        line = self._data[self._position : end + 1 if end >= 0 else None]
        if len(line) > MAX_LINE_BYTES or (end < 0 and len(line) == MAX_LINE_BYTES):
            raise _Ended(error=TOO_LONG)
        if end < 0:
            raise _Ended()
        self._position = end + 1
        line = line[:-1].removesuffix(b"\r")
        verb, *parameters = line.split(b" ")
        if verb in {b"PUB", b"DPUB", b"MPUB", b"IDENTIFY", b"AUTH"}:
            return self._read_with_body(verb, parameters)
        return self._read_line(verb, parameters)

    def _read_line(self, verb: bytes, parameters: list[bytes]) -> Event:
        if verb == b"NOP":
            return (commands.Nop(),)
        if verb == b"CLS":
            return (commands.StartClose(),)
        if verb == b"RDY":
            return self._read_ready(parameters)
        if verb == b"SUB":
            return self._read_subscription(parameters)
        if verb in {b"FIN", b"TOUCH", b"REQ"}:
            return self._read_answer(verb, parameters)
        raise _Ended(error=b"E_INVALID invalid command " + verb)

    def _read_with_body(self, verb: bytes, parameters: list[bytes]) -> Event:
        if verb == b"IDENTIFY":
            return (commands.Identify(self._read_body("IDENTIFY")),)
        if verb == b"MPUB":
            return self._read_mpub(parameters)
        if verb == b"AUTH":
            if parameters:
                raise _Ended(error=b"E_INVALID AUTH invalid number of parameters")
            return (commands.Auth(self._read_body("AUTH")),)
        return self._read_publish(verb, parameters)

    def _read_answer(self, verb: bytes, parameters: list[bytes]) -> Event:
        if len(parameters) < (2 if verb == b"REQ" else 1):
            raise _Ended(error=b"E_INVALID %b insufficient number of params" % verb)
        message_id = parameters[0]
        if len(message_id) != 16:
            raise _Ended(error=b"E_INVALID invalid message ID")
        if verb == b"FIN":
            return ("FIN", message_id)
        if verb == b"TOUCH":
            return (commands.Touch(message_id),)
        delay_ms = _decimal(parameters[1], b"E_INVALID REQ could not parse timeout ")
        return ("REQ", message_id, delay_ms)

    def _read_ready(self, parameters: list[bytes]) -> Event:
        count = 1
        if parameters:
            count = _decimal(parameters[0], b"E_INVALID RDY could not parse count ")
        maximum = self._limits.max_rdy_count
        if count > maximum:
            raise _Ended(error=f"E_INVALID RDY count {count} out of range 0-{maximum}".encode())
        return (commands.Ready(count),)

    def _read_subscription(self, parameters: list[bytes]) -> Event:
        if len(parameters) < 2:
            raise _Ended(error=b"E_INVALID SUB insufficient number of parameters")
        topic = _name(parameters[0], "E_BAD_TOPIC SUB topic")
        channel = _name(parameters[1], "E_BAD_CHANNEL SUB channel")
        return (commands.Subscribe(topic, channel),)

    def _read_publish(self, verb: bytes, parameters: list[bytes]) -> Event:
        if len(parameters) < (2 if verb == b"DPUB" else 1):
            raise _Ended(error=b"E_INVALID %b insufficient number of parameters" % verb)
        topic = _name(parameters[0], f"E_BAD_TOPIC {verb.decode()} topic")
        if verb == b"PUB":
            return ("PUB", topic, self._read_message(verb))
        delay_ms = _decimal(parameters[1], b"E_INVALID DPUB could not parse timeout ")
        maximum = self._limits.max_defer_ms
        if delay_ms > maximum:
            text = f"E_INVALID DPUB timeout {delay_ms} out of range 0-{maximum}"
            raise _Ended(error=text.encode())
        return ("DPUB", topic, delay_ms, self._read_message(verb))

    def _read_message(self, verb: bytes) -> bytes:
        size = self._read_int(b"E_BAD_MESSAGE %b failed to read message body size" % verb)
        maximum = self._limits.max_msg_size
        if size <= 0:
            raise _Ended(error=b"E_BAD_MESSAGE %b invalid message body size %d" % (verb, size))
        if size > maximum:
            raise _Ended(error=b"E_BAD_MESSAGE %b message too big %d > %d" % (verb, size, maximum))
        return self._read(size, b"E_BAD_MESSAGE %b failed to read message body" % verb)

    def _read_body(self, verb: str) -> bytes:
        size = self._read_int(f"E_BAD_BODY {verb} failed to read body size".encode())
        maximum = self._limits.max_body_size
        if size > maximum:
            raise _Ended(error=f"E_BAD_BODY {verb} body too big {size} > {maximum}".encode())
        if size <= 0:
            raise _Ended(error=f"E_BAD_BODY {verb} invalid body size {size}".encode())
        return self._read(size, f"E_BAD_BODY {verb} failed to read body".encode())

    def _read_mpub(self, parameters: list[bytes]) -> Event:
        if not parameters:
            raise _Ended(error=b"E_INVALID MPUB insufficient number of parameters")
        topic = _name(parameters[0], "E_BAD_TOPIC E_BAD_TOPIC MPUB topic")
        size = self._read_int(b"E_BAD_BODY MPUB failed to read body size")
        maximum = self._limits.max_body_size
        if size <= 0:
            raise _Ended(error=b"E_BAD_BODY MPUB invalid body size %d" % size)
        if size > maximum:
            raise _Ended(error=b"E_BAD_BODY MPUB body too big %d > %d" % (size, maximum))
        count = self._read_int(b"E_BAD_BODY MPUB failed to read message count")
        if not 0 < count <= (maximum - 4) // 5:
            raise _Ended(error=b"E_BAD_BODY MPUB invalid message count %d" % count)
        bodies = []
        extent = 4
        for index in range(count):
            body = self._read_mpub_message(index, extent)
            extent += 4 + len(body)
            bodies.append(body)
        return ("MPUB", topic, *bodies)

    def _read_mpub_message(self, index: int, extent: int) -> bytes:
        size = self._read_int(b"E_BAD_MESSAGE MPUB failed to read message(%d) body size" % index)
        if size <= 0:
            text = b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d"
            raise _Ended(error=text % (index, size))
        maximum = self._limits.max_msg_size
        if size > maximum:
            raise _Ended(error=b"E_BAD_MESSAGE MPUB message too big %d > %d" % (size, maximum))
        maximum = self._limits.max_body_size
        if extent + 4 + size > maximum:  # ours: the Go daemon would take any amount
            raise _Ended(
                error=b"E_BAD_BODY MPUB body too big %d > %d" % (extent + 4 + size, maximum)
            )
        return self._read(size, b"E_BAD_MESSAGE MPUB failed to read message body")

    def _read_int(self, at_eof: bytes) -> int:
        return int.from_bytes(self._read(4, at_eof), "big", signed=True)

    def _read(self, size: int, at_eof: bytes) -> bytes:
        data = self._data[self._position : self._position + size]
        if len(data) < size:
            raise _Ended(at_eof=at_eof)
        self._position += size
        return data


def _name(raw: bytes, what: str) -> str:
    name = decode_name(raw)
    if name is None:
        text = f"{what} name {go_quote(raw)} is not valid"
        raise _Ended(error=text.encode("utf-8", "surrogateescape"))
    return name


def _decimal(raw: bytes, complaint: bytes) -> int:
    if len(raw) > 20 or raw.strip(b"0123456789"):
        raise _Ended(error=complaint + raw)
    return int(raw or b"0")
