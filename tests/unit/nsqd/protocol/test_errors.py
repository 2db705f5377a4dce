import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.protocol.errors import ErrorCode, FatalClientError, go_quote


def test_frame_data_is_code_and_text() -> None:
    error = FatalClientError(ErrorCode.E_FIN_FAILED, "FIN 0123456789abcdef failed ID not in flight")

    assert error.frame_data == b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
    assert error.code is ErrorCode.E_FIN_FAILED


def test_code_alone_has_no_trailing_space() -> None:
    # W-2
    assert FatalClientError(ErrorCode.E_BAD_PROTOCOL).frame_data == b"E_BAD_PROTOCOL"


def test_trailing_space_of_the_text_is_kept() -> None:
    error = FatalClientError(ErrorCode.E_INVALID, "invalid command ")

    assert error.frame_data == b"E_INVALID invalid command "


@given(st.binary(min_size=1, max_size=64))
def test_client_bytes_come_back_unchanged(raw: bytes) -> None:
    # W-10
    expected = b"E_INVALID invalid command " + raw

    as_bytes = FatalClientError(ErrorCode.E_INVALID, b"invalid command " + raw)
    as_text = FatalClientError(
        ErrorCode.E_INVALID, f"invalid command {raw.decode('utf-8', 'surrogateescape')}"
    )

    assert as_bytes.frame_data == expected
    assert as_text.frame_data == expected


def test_every_code_is_spelled_as_its_name() -> None:
    assert len(ErrorCode) == 19
    assert all(code.value == code.name for code in ErrorCode)


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"t%1", '"t%1"'),
        (b"a b~", '"a b~"'),
        (b'say "hi"', r'"say \"hi\""'),
        (b"back\\slash", r'"back\\slash"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x01\x06\x0e\x1f\x7f", r'"\x00\x01\x06\x0e\x1f\x7f"'),
        (b"\xff", r'"\xff"'),
        (b"\xe2\x82", r'"\xe2\x82"'),
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
        ("é日本".encode(), '"é日本"'),
        ("\u00a0\u200b\u2028\ufeff".encode(), r'"\u00a0\u200b\u2028\ufeff"'),
        ("\u0085".encode(), r'"\u0085"'),
        ("\U000e0001".encode(), r'"\U000e0001"'),
        ("😀\ufffd".encode(), '"😀\ufffd"'),
        ("\uffff\U00010000\U0010ffff".encode(), '"\\uffff\U00010000\\U0010ffff"'),
        (b"\x80\xfe", r'"\x80\xfe"'),
    ],
)
def test_names_are_quoted_as_go_does(raw: bytes, quoted: str) -> None:
    # W-52, W-72
    assert go_quote(raw) == quoted
    assert go_quote(raw.decode("utf-8", "surrogateescape")) == quoted


def test_a_surrogate_that_stands_for_no_byte_is_quoted_as_a_replacement() -> None:
    assert go_quote("\ud800") == r'"\ufffd"'
    assert go_quote("\udc7f\udc80\udcff\udd00\udfff") == r'"\ufffd\x80\xff\ufffd\ufffd"'


@given(st.binary(max_size=64))
def test_quoted_names_are_printable(raw: bytes) -> None:
    quoted = go_quote(raw)

    assert quoted.isprintable()
    assert quoted[0] == quoted[-1] == '"'
