"""The parameters of commands; test_command_parser has them with their bodies."""

import pytest

from nsqd.protocol import commands
from nsqd.protocol.command_lines import (
    WHOLE_LINE_READERS,
    CommandLimits,
    check_auth,
    read_dpub,
    read_mpub,
    read_pub,
)
from nsqd.protocol.commands import describe
from nsqd.protocol.errors import FatalClientError

LIMITS = CommandLimits(max_msg_size=100, max_body_size=1000, max_rdy_count=2500, max_defer_ms=3600)
ID = b"0123456789abcdef"


def read(line: bytes) -> commands.Command:
    words = line.split(b" ")
    return WHOLE_LINE_READERS[words[0]](words, LIMITS)


def test_superfluous_parameters_are_ignored() -> None:
    # W-15
    assert read(b"SUB t c more") == commands.Subscribe("t", "c")
    assert read(b"RDY 5 more") == commands.Ready(5)
    assert read(b"TOUCH " + ID + b" more") == commands.Touch(ID)
    assert describe(read(b"REQ " + ID + b" 7 more")) == f"REQ 7 {ID.decode()}"
    assert read(b"NOP more") == commands.Nop()
    assert read(b"CLS more") == commands.StartClose()
    assert read_pub([b"PUB", b"t", b"more"]) == "t"
    assert read_mpub([b"MPUB", b"t", b"more"]) == "t"
    assert read_dpub([b"DPUB", b"t", b"9", b"more"], LIMITS) == ("t", 9)


def test_limits_are_inclusive() -> None:
    assert read(b"RDY 2500") == commands.Ready(2500)
    assert read_dpub([b"DPUB", b"t", b"3600"], LIMITS) == ("t", 3600)
    for refuse in (
        lambda: read(b"RDY 2501"),
        lambda: read_dpub([b"DPUB", b"t", b"3601"], LIMITS),
    ):
        with pytest.raises(FatalClientError, match="out of range"):
            refuse()


def test_a_decimal_has_at_most_20_digits() -> None:
    delay = b"0" * 19 + b"7"
    assert describe(read(b"REQ " + ID + b" " + delay)) == f"REQ 7 {ID.decode()}"
    with pytest.raises(FatalClientError, match="could not parse timeout 0"):
        read(b"REQ " + ID + b" 0" + delay)


def test_auth_has_no_parameters() -> None:
    check_auth([b"AUTH"])
    with pytest.raises(FatalClientError, match="invalid number of parameters"):
        check_auth([b"AUTH", b""])
