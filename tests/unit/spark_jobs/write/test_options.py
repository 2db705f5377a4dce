"""Options of a write are refused with a reason, never ignored."""

import pytest

from spark_jobs.write.options import parse_sink_options


def test_addresses_have_a_default_port() -> None:
    parsed = parse_sink_options({"addresses": "a:1, b , [::1]:9"})

    assert parsed.publisher.addresses == (("a", 1), ("b", 4150), ("::1", 9))


@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({"addresses": "a", "lookupd": "b"}, "either addresses"),
        ({"addresses": "a:99999"}, "host:port"),
        ({"addresses": "a", "batchBytes": "x"}, "batchBytes is a size"),
        ({"addresses": "a", "maxRate": "-1"}, "maxRate is a number"),
        ({"addresses": "a", "tls": "maybe"}, "tls is true or false"),
    ],
)
def test_a_wrong_option_is_refused_with_its_reason(
    given_options: dict[str, str], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        parse_sink_options(given_options)


def test_sparks_own_options_are_ignored() -> None:
    parse_sink_options({"addresses": "a", "path": "x", "checkpointLocation": "y", "queryName": "z"})
