"""Settings, and the fields of IDENTIFY."""

from dataclasses import fields

import pytest

from nsqd.client.settings import ConnectionOptions, Settings, Tls


@pytest.mark.parametrize(
    "options",
    [{"compression": "zip"}, {"sample_rate": 100}, {"heartbeat_interval": 0.5}],
)
def test_bad_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ
        Settings(**options)  # type: ignore[arg-type] # that is the point


def test_identify_says_only_what_was_set() -> None:
    plain = Settings(client_id="me", hostname="here.example").identify_fields()
    full = Settings(
        tls=Tls(),
        compression="deflate",
        deflate_level=3,
        msg_timeout=1.5,
        sample_rate=10,
        output_buffer_timeout=0.25,
    ).identify_fields()

    assert plain["client_id"] == "me"
    assert plain["feature_negotiation"] is True
    assert plain["heartbeat_interval"] == 30_000
    assert not {"msg_timeout", "sample_rate", "deflate_level", "topology_zone"} & plain.keys()
    assert (full["tls_v1"], full["deflate"], full["snappy"]) == (True, True, False)
    assert (full["deflate_level"], full["msg_timeout"], full["sample_rate"]) == (3, 1500, 10)
    assert full["output_buffer_timeout"] == 250


def test_the_options_of_producers_and_consumers_are_the_settings() -> None:
    assert set(ConnectionOptions.__annotations__) == {field.name for field in fields(Settings)}
