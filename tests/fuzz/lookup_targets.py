"""What passes between nsqd and nsqlookupd."""

import contextlib

from nsqd.protocol.errors import FatalClientError
from nsqd.protocol.lookup import (
    Command,
    CommandParser,
    Identify,
    LookupReplyError,
    ReplyParser,
    check_ok,
    decode_lookupd_identity,
    encode_identify,
    encode_reply,
)
from nsqd.protocol.names import is_valid_topic_name
from tests.fuzz.splits import cut

MAX_REPLY_BYTES = 1000


def check_commands(data: bytes) -> None:
    """nsqlookupd understands the same however the bytes are cut."""
    whole = read_commands([data])

    assert read_commands(cut(data)) == whole
    commands, _ = whole
    for command in commands:
        if isinstance(command, Identify):
            [again], _ = read_commands([b"  V1" + encode_identify(command.identity)])
            assert again == command


def read_commands(pieces: list[bytes]) -> tuple[list[Command], bytes]:
    """Return the commands, and the error or the state after them."""
    parser = CommandParser()
    commands: list[Command] = []
    try:
        for piece in pieces:
            for command in parser.feed(piece):
                check_names(command)
                commands.append(command)
        is_mid_command = parser.is_mid_command
        parser.feed_eof()
    except FatalClientError as error:
        return commands, error.frame_data
    return commands, b"mid command" if is_mid_command else b""


def check_names(command: Command) -> None:
    for name in (getattr(command, "topic", None), getattr(command, "channel", None)):
        assert name is None or is_valid_topic_name(name)


def check_replies(data: bytes) -> None:
    """nsqd understands the same however an nsqlookupd's bytes are cut."""
    whole = read_replies([data])

    assert read_replies(cut(data)) == whole
    for reply in whole[0]:
        assert encode_reply(reply) in data


def read_replies(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """Return the replies, and whether nothing was wrong with their sizes."""
    parser = ReplyParser(max_reply_bytes=MAX_REPLY_BYTES)
    replies: list[bytes] = []
    try:
        for piece in pieces:
            for reply in parser.feed(piece):
                replies.append(reply)
                read_reply(reply)
    except LookupReplyError:
        return replies, False
    return replies, True


def read_reply(reply: bytes) -> None:
    for read in (check_ok, decode_lookupd_identity):
        with contextlib.suppress(LookupReplyError):
            read(reply)
