"""Commands of NSQ's protocol V2, byte for byte."""

import pytest

from spark_jobs.write.publisher import PublishError, check_topic, encode_dpub, encode_mpub


def test_an_mpub_has_its_size_and_its_count_before_the_messages() -> None:
    framed = b"\0\0\0\x01a" + b"\0\0\0\x02bc"

    command = encode_mpub("t.x", 2, framed)

    assert command == (b"MPUB t.x\n" + b"\0\0\0\x0f" + b"\0\0\0\x02" + framed, 2)


def test_a_dpub_has_its_delay_in_the_line() -> None:
    assert encode_dpub("t", b"abc", 5000) == (b"DPUB t 5000\n" + b"\0\0\0\x03" + b"abc", 1)


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "x#ephemeral", "a" * 64])
def test_a_valid_topic_is_accepted(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "a\n", "é", "a" * 65, "#ephemeral", "x#other"])
def test_an_invalid_topic_is_refused(name: str) -> None:
    with pytest.raises(PublishError, match="not the name of a topic"):
        check_topic(name)
