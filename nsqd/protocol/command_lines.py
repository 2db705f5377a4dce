"""The lines of the V2 commands: their parameters, checked in nsqd's order.

A line comes here as its words: the verb, then the parameters. Superfluous parameters are ignored,
as by nsqd. Of a command with a body only the line is read
here; the body is the parser's.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from nsqd.protocol.commands import (
    Command,
    Finish,
    Nop,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from nsqd.protocol.errors import ErrorCode, FatalClientError, go_quote
from nsqd.protocol.names import decode_name

MESSAGE_ID_BYTES = 16
_DIGITS = re.compile(rb"[0-9]*")
_MAX_DIGITS = 20  # a uint64 has no more


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """The options that commands are checked against."""

    max_msg_size: int
    max_body_size: int
    max_rdy_count: int
    max_defer_ms: int


def read_pub(words: list[bytes]) -> str:
    """Return the topic of a PUB.

    Raises:
        FatalClientError: the line is wrong.
    """
    _check_count("PUB", words, 2)
    return _read_topic("PUB", words[1])


def read_mpub(words: list[bytes]) -> str:
    """Return the topic of an MPUB.

    Raises:
        FatalClientError: the line is wrong.
    """
    _check_count("MPUB", words, 2)
    topic = decode_name(words[1])
    if topic is None:
        # nsqd says the code twice, and clients have seen it for years.
        text = f"E_BAD_TOPIC MPUB topic name {go_quote(words[1])} is not valid"
        raise FatalClientError(ErrorCode.E_BAD_TOPIC, text)
    return topic


def read_dpub(words: list[bytes], limits: CommandLimits) -> tuple[str, int]:
    """Return topic and delay in milliseconds of a DPUB.

    Raises:
        FatalClientError: the line is wrong.
    """
    _check_count("DPUB", words, 3)
    topic = _read_topic("DPUB", words[1])
    delay_ms = _read_decimal(words[2], "DPUB could not parse timeout")
    maximum = limits.max_defer_ms
    if delay_ms > maximum:
        text = f"DPUB timeout {delay_ms} out of range 0-{maximum}"
        raise FatalClientError(ErrorCode.E_INVALID, text)
    return topic, delay_ms


def check_auth(words: list[bytes]) -> None:
    """Check the line of an AUTH.

    Raises:
        FatalClientError: it has parameters.
    """
    if len(words) != 1:
        raise FatalClientError(ErrorCode.E_INVALID, "AUTH invalid number of parameters")


def _read_nop(_words: list[bytes], _limits: CommandLimits) -> Nop:
    return Nop()


def _read_cls(_words: list[bytes], _limits: CommandLimits) -> StartClose:
    return StartClose()


def _read_sub(words: list[bytes], _limits: CommandLimits) -> Subscribe:
    _check_count("SUB", words, 3)
    topic = _read_topic("SUB", words[1])
    channel = decode_name(words[2])
    if channel is None:
        text = f"SUB channel name {go_quote(words[2])} is not valid"
        raise FatalClientError(ErrorCode.E_BAD_CHANNEL, text)
    return Subscribe(topic, channel)


def _read_rdy(words: list[bytes], limits: CommandLimits) -> Ready:
    count = 1
    if len(words) > 1:
        count = _read_decimal(words[1], "RDY could not parse count")
    maximum = limits.max_rdy_count
    if count > maximum:
        text = f"RDY count {count} out of range 0-{maximum}"
        raise FatalClientError(ErrorCode.E_INVALID, text)
    return Ready(count)


def _read_fin(words: list[bytes], _limits: CommandLimits) -> Finish:
    return Finish([_read_message_id("FIN", words, 2)])


def _read_touch(words: list[bytes], _limits: CommandLimits) -> Touch:
    return Touch(_read_message_id("TOUCH", words, 2))


def _read_req(words: list[bytes], _limits: CommandLimits) -> Requeue:
    message_id = _read_message_id("REQ", words, 3)
    return Requeue([message_id], _read_decimal(words[2], "REQ could not parse timeout"))


# The commands that are over with their line; each reader raises FatalClientError on a wrong one.
WHOLE_LINE_READERS: dict[bytes, Callable[[list[bytes], CommandLimits], Command]] = {
    b"FIN": _read_fin,
    b"RDY": _read_rdy,
    b"REQ": _read_req,
    b"NOP": _read_nop,
    b"TOUCH": _read_touch,
    b"SUB": _read_sub,
    b"CLS": _read_cls,
}


def _check_count(verb: str, words: list[bytes], wanted: int) -> None:
    if len(words) < wanted:
        raise FatalClientError(ErrorCode.E_INVALID, f"{verb} insufficient number of parameters")


def _read_topic(verb: str, raw: bytes) -> str:
    topic = decode_name(raw)
    if topic is None:
        text = f"{verb} topic name {go_quote(raw)} is not valid"
        raise FatalClientError(ErrorCode.E_BAD_TOPIC, text)
    return topic


def _read_message_id(verb: str, words: list[bytes], wanted: int) -> bytes:
    if len(words) < wanted:
        raise FatalClientError(ErrorCode.E_INVALID, f"{verb} insufficient number of params")
    message_id = words[1]
    if len(message_id) != MESSAGE_ID_BYTES:
        raise FatalClientError(ErrorCode.E_INVALID, "invalid message ID")
    return message_id


def _read_decimal(raw: bytes, complaint: str) -> int:
    """Return a decimal of nsqd: digits only, no digit at all is 0."""
    if len(raw) > _MAX_DIGITS or _DIGITS.fullmatch(raw) is None:
        raise FatalClientError(ErrorCode.E_INVALID, complaint.encode() + b" " + raw)
    return int(raw or b"0")
