import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.identify import ClientSettings, IdentifyLimits, negotiate

LIMITS = IdentifyLimits(
    version="1.3.0",
    max_rdy_count=2500,
    msg_timeout_ms=60_000,
    max_msg_timeout_ms=900_000,
    max_heartbeat_interval_ms=60_000,
    output_buffer_timeout_ms=250,
    min_output_buffer_timeout_ms=25,
    max_output_buffer_timeout_ms=30_000,
    max_output_buffer_size=65_536,
    has_tls=True,
    deflate=True,
    max_deflate_level=6,
    snappy=True,
    auth_required=False,
    topology_region="",
    topology_zone="",
)
INITIAL = ClientSettings.initial(LIMITS, "10.0.0.7")
FEATURES: dict[str, object] = {"feature_negotiation": True}
UNDECODABLE = b"E_BAD_BODY IDENTIFY failed to decode JSON body"


def identify(
    fields: dict[str, object], current: ClientSettings = INITIAL, limits: IdentifyLimits = LIMITS
) -> ClientSettings:
    return negotiate(json.dumps(fields).encode(), current, limits)[0]


def reply_to(
    fields: dict[str, object], current: ClientSettings = INITIAL, limits: IdentifyLimits = LIMITS
) -> dict[str, object]:
    body = json.dumps({"feature_negotiation": True} | fields).encode()
    decoded: dict[str, object] = json.loads(negotiate(body, current, limits)[1])
    return decoded


def refusal(body: bytes | dict[str, object], limits: IdentifyLimits = LIMITS) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(FatalClientError) as caught:
        negotiate(raw, INITIAL, limits)
    return caught.value.frame_data


def test_a_new_connection_is_named_by_its_address() -> None:
    # W-45
    assert (INITIAL.client_id, INITIAL.hostname) == ("10.0.0.7", "10.0.0.7")
    assert INITIAL.heartbeat_interval_ms == 30_000
    assert (INITIAL.output_buffer_size, INITIAL.output_buffer_timeout_ms) == (16_384, 250)
    assert INITIAL.msg_timeout_ms == 60_000


@pytest.mark.parametrize("body", [b"{}", b"null", b" \t\r\n{ } ", b'{"client_id":null}'])
def test_an_empty_request_is_answered_with_ok(body: bytes) -> None:
    # W-20, W-21, W-45
    settings, reply = negotiate(body, INITIAL, LIMITS)

    assert reply == b"OK"
    assert settings == replace(INITIAL, client_id="", hostname="", is_identified=True)


def test_the_reply_has_the_documented_keys_in_order() -> None:
    # W-27, W-35, W-37
    settings, reply = negotiate(b'{"feature_negotiation":true}', INITIAL, LIMITS)

    assert reply == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
        b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
    )
    assert settings.feature_negotiation


def test_the_reply_carries_the_servers_values() -> None:
    # W-43, W-44
    limits = replace(
        LIMITS, auth_required=True, max_rdy_count=7, topology_region="eu", topology_zone="eü-1"
    )

    reply = reply_to({"topology_region": "us", "topology_zone": "us-1"}, limits=limits)

    assert (reply["auth_required"], reply["max_rdy_count"]) == (True, 7)
    assert (reply["topology_region"], reply["topology_zone"]) == ("eu", "eü-1")


def test_a_server_region_that_is_no_text_does_not_break_the_reply() -> None:
    assert (
        reply_to({}, limits=replace(LIMITS, topology_region="\udcff"))["topology_region"]
        == "\ufffd"
    )


def test_the_clients_words_about_itself_are_stored() -> None:
    settings = identify(
        {
            "client_id": "c",
            "hostname": "h.example",
            "user_agent": "pynsq/0.9",
            "topology_region": "eu",
            "topology_zone": "eu-1",
            "sample_rate": 5,
        }
    )

    assert settings == replace(
        INITIAL,
        is_identified=True,
        client_id="c",
        hostname="h.example",
        user_agent="pynsq/0.9",
        topology_region="eu",
        topology_zone="eu-1",
        sample_rate=5,
    )


@pytest.mark.parametrize(
    ("field", "value", "attribute", "effective"),
    [
        ("heartbeat_interval", -1, "heartbeat_interval_ms", 0),
        ("heartbeat_interval", 0, "heartbeat_interval_ms", 30_000),
        ("heartbeat_interval", 1_000, "heartbeat_interval_ms", 1_000),
        ("heartbeat_interval", 60_000, "heartbeat_interval_ms", 60_000),
        ("output_buffer_timeout", -1, "output_buffer_timeout_ms", 0),
        ("output_buffer_timeout", 0, "output_buffer_timeout_ms", 250),
        ("output_buffer_timeout", 25, "output_buffer_timeout_ms", 25),
        ("output_buffer_timeout", 30_000, "output_buffer_timeout_ms", 30_000),
        ("output_buffer_size", -1, "output_buffer_size", 1),
        ("output_buffer_size", 0, "output_buffer_size", 16_384),
        ("output_buffer_size", 64, "output_buffer_size", 64),
        ("output_buffer_size", 65_536, "output_buffer_size", 65_536),
        ("sample_rate", 0, "sample_rate", 0),
        ("sample_rate", 99, "sample_rate", 99),
        ("msg_timeout", 0, "msg_timeout_ms", 60_000),
        ("msg_timeout", 1_000, "msg_timeout_ms", 1_000),
        ("msg_timeout", 900_000, "msg_timeout_ms", 900_000),
    ],
)
def test_values_within_their_bounds_take_effect(
    field: str, value: int, attribute: str, effective: int
) -> None:
    # W-29 to W-34; without feature negotiation too
    assert getattr(identify({field: value}), attribute) == effective


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("heartbeat_interval", 999, "heartbeat interval (999) is invalid"),
        ("heartbeat_interval", 60_001, "heartbeat interval (60001) is invalid"),
        ("heartbeat_interval", -2, "heartbeat interval (-2) is invalid"),
        ("output_buffer_timeout", 24, "output buffer timeout (24) is invalid"),
        ("output_buffer_timeout", 30_001, "output buffer timeout (30001) is invalid"),
        ("output_buffer_timeout", -2, "output buffer timeout (-2) is invalid"),
        ("output_buffer_size", 63, "output buffer size (63) is invalid"),
        ("output_buffer_size", 65_537, "output buffer size (65537) is invalid"),
        ("output_buffer_size", -2, "output buffer size (-2) is invalid"),
        ("sample_rate", -1, "sample rate (-1) is invalid"),
        ("sample_rate", 100, "sample rate (100) is invalid"),
        ("msg_timeout", 999, "msg timeout (999) is invalid"),
        ("msg_timeout", 900_001, "msg timeout (900001) is invalid"),
        ("msg_timeout", -1, "msg timeout (-1) is invalid"),
        ("msg_timeout", 2**63 - 1, f"msg timeout ({2**63 - 1}) is invalid"),
    ],
)
def test_values_out_of_bounds_are_refused(field: str, value: int, text: str) -> None:
    # W-29 to W-34
    assert refusal({field: value}) == f"E_BAD_BODY IDENTIFY {text}".encode()


def test_the_first_check_that_fails_is_reported() -> None:
    checks = ["heartbeat_interval", "output_buffer_timeout", "output_buffer_size"]
    checks += ["sample_rate", "msg_timeout"]
    texts = ["heartbeat interval", "output buffer timeout", "output buffer size"]
    texts += ["sample rate", "msg timeout"]

    for position, text in enumerate(texts):
        bad: dict[str, object] = dict.fromkeys(reversed(checks[position:]), -3)
        assert refusal(bad) == f"E_BAD_BODY IDENTIFY {text} (-3) is invalid".encode()


def test_an_unbuffered_client_has_no_flush_timer() -> None:
    # W-32
    reply = reply_to({"output_buffer_size": -1, "output_buffer_timeout": 500})

    assert (reply["output_buffer_size"], reply["output_buffer_timeout"]) == (1, 0)


def test_features_need_feature_negotiation() -> None:
    # W-28
    settings, reply = negotiate(b'{"tls_v1":true,"snappy":true,"deflate":true}', INITIAL, LIMITS)

    assert reply == b"OK"
    assert (settings.tls_v1, settings.snappy, settings.deflate) == (False, False, False)


@pytest.mark.parametrize("feature", ["tls_v1", "snappy", "deflate"])
def test_a_feature_the_server_has_is_granted(feature: str) -> None:
    assert reply_to({feature: True})[feature] is True
    assert getattr(identify({"feature_negotiation": True, feature: True}), feature) is True


@pytest.mark.parametrize(
    ("feature", "flag"), [("tls_v1", "has_tls"), ("snappy", "snappy"), ("deflate", "deflate")]
)
def test_a_feature_the_server_lacks_is_not_granted(feature: str, flag: str) -> None:
    # W-39, W-46
    limits = replace(LIMITS, **{flag: False})  # type: ignore[arg-type]

    assert reply_to({feature: True}, limits=limits)[feature] is False


@pytest.mark.parametrize(
    ("fields", "max_level", "level"),
    [
        ({"deflate": True}, 6, 6),
        ({"deflate": True, "deflate_level": 1}, 6, 1),
        ({"deflate": True, "deflate_level": 9}, 6, 6),
        ({"deflate": True, "deflate_level": 9}, 9, 9),
        ({"deflate": True, "deflate_level": 0}, 9, 6),
        ({"deflate": True, "deflate_level": -4}, 9, 6),
        ({"deflate": True}, 3, 3),
        ({"deflate_level": 2}, 6, 6),
        ({"deflate_level": 2}, 3, 3),
    ],
)
def test_the_deflate_level_is_capped(fields: dict[str, object], max_level: int, level: int) -> None:
    # W-36, W-37
    limits = replace(LIMITS, max_deflate_level=max_level)
    initial = ClientSettings.initial(limits, "")

    assert reply_to(fields, initial, limits)["deflate_level"] == level
    assert identify(FEATURES | fields, initial, limits).deflate_level == level


def test_both_compressions_are_refused() -> None:
    # W-38
    both: dict[str, object] = {"feature_negotiation": True, "snappy": True, "deflate": True}
    text = b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"

    assert refusal(both) == text
    assert identify(both, limits=replace(LIMITS, snappy=False)).deflate


def test_a_second_identify_keeps_what_it_does_not_name() -> None:
    # W-40
    first = identify(
        {
            "client_id": "c",
            "heartbeat_interval": 5_000,
            "msg_timeout": 2_000,
            "output_buffer_size": 128,
            "output_buffer_timeout": -1,
            "sample_rate": 10,
        }
    )

    second = identify({"user_agent": "u"}, first)

    assert second == replace(first, client_id="", user_agent="u", sample_rate=0)


def test_an_upgrade_lasts_and_is_announced_once() -> None:
    first = identify(FEATURES | {"tls_v1": True, "deflate": True, "deflate_level": 2})

    again: dict[str, object] = {"tls_v1": True, "deflate": True, "deflate_level": 5}
    reply = reply_to(again, first)
    second = identify(FEATURES | again, first)

    assert (reply["tls_v1"], reply["deflate"], reply["deflate_level"]) == (False, False, 2)
    assert (second.tls_v1, second.deflate, second.deflate_level) == (True, True, 2)
    assert identify({}, first).tls_v1


def test_a_second_compression_is_refused_later_too() -> None:
    first = identify(FEATURES | {"deflate": True})

    with pytest.raises(FatalClientError) as caught:
        identify(FEATURES | {"snappy": True}, first)

    assert caught.value.code is ErrorCode.E_IDENTIFY_FAILED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"1",
        b'"x"',
        b"true",
        b"{",
        b"{}x",
        b"{} {}",
        b"nil",
        b"NaN",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":01}',
        b'{"client_id":"a\tb"}',
        b'{"client_id":1}',
        b'{"client_id":{}}',
        b'{"client_id":[]}',
        b'{"msg_timeout":"1000"}',
        b'{"msg_timeout":1000.5}',
        b'{"msg_timeout":1000.0}',
        b'{"msg_timeout":1e3}',
        b'{"msg_timeout":true}',
        b'{"msg_timeout":9223372036854775808}',
        b'{"msg_timeout":-9223372036854775809}',
        b'{"msg_timeout":' + b"9" * 10_000 + b"}",
        b'{"sample_rate":2147483648}',
        b'{"snappy":1}',
        b'{"snappy":"true"}',
        b'{"snappy":0,"snappy":true}',
        b"\xef\xbb\xbf{}",
        b"\xff{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00",
    ],
)
def test_what_is_not_the_expected_json_is_refused(body: bytes) -> None:
    # W-21, W-24
    assert refusal(body) == UNDECODABLE


def test_unknown_fields_are_ignored() -> None:
    # W-22
    body = b'{"short_id":"s","long_id":1.5,"x":[1,{"snappy":1}],"n":' + b"9" * 10_000 + b"}"

    assert negotiate(body, INITIAL, LIMITS)[1] == b"OK"


def test_keys_match_whatever_their_case() -> None:
    # W-23
    body = '{"Client_ID":"c","HEARTBEAT_INTERVAL":5000,"u\u017fer_agent":"u"}'.encode()

    settings, _ = negotiate(body, INITIAL, LIMITS)

    assert (settings.client_id, settings.heartbeat_interval_ms) == ("c", 5_000)
    assert settings.user_agent == "u"


def test_the_last_duplicate_that_is_not_null_wins() -> None:
    body = b'{"client_id":"a","CLIENT_ID":"b","client_id":null,"msg_timeout":1,"msg_timeout":2000}'

    settings, _ = negotiate(body, INITIAL, LIMITS)

    assert (settings.client_id, settings.msg_timeout_ms) == ("b", 2_000)


def test_text_that_is_not_unicode_is_replaced() -> None:
    body = b'{"client_id":"a\xff\xe2\x82b","hostname":"\\ud800x","user_agent":"\\ud83d\\ude00"}'

    settings, _ = negotiate(body, INITIAL, LIMITS)

    assert settings.client_id == "a\ufffd\ufffd\ufffdb"
    assert (settings.hostname, settings.user_agent) == ("\ufffdx", "😀")


def test_minus_zero_is_zero() -> None:
    assert negotiate(b'{"msg_timeout":-0}', INITIAL, LIMITS)[0].msg_timeout_ms == 60_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
field_names = st.sampled_from(sorted(set(ClientSettings.__dataclass_fields__) | {"msg_timeout"}))


@given(st.dictionaries(field_names | st.text(max_size=4), json_values, max_size=6))
def test_any_object_is_answered_or_refused(fields: dict[str, object]) -> None:
    code = None
    reply = b"OK"

    try:
        reply = negotiate(json.dumps(fields).encode(), INITIAL, LIMITS)[1]
    except FatalClientError as error:
        code = error.code

    assert code in {None, ErrorCode.E_BAD_BODY, ErrorCode.E_IDENTIFY_FAILED}
    assert reply == b"OK" or len(json.loads(reply)) == 15


@given(st.binary(max_size=60))
def test_any_bytes_are_answered_or_refused(body: bytes) -> None:
    data = b""

    try:
        negotiate(body, INITIAL, LIMITS)
    except FatalClientError as error:
        data = error.frame_data

    assert data == b"" or data.startswith(b"E_BAD_BODY IDENTIFY ")
