"""Options of a write are refused with a reason, never ignored."""

from pathlib import Path

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


def test_the_secret_may_be_in_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("open sesame\n")

    parsed = parse_sink_options({"addresses": "a", "authSecretFile": str(path)})

    assert parsed.publisher.auth_secret == "open sesame"
    assert "sesame" not in repr(parsed)
    assert "sesame" not in repr(parse_sink_options({"addresses": "a", "authSecret": "sesame"}))


@pytest.mark.parametrize("content", [b"", b" \n", b"sesame\xff", b"sesame" * 1000])
def test_a_file_without_a_secret_is_refused_without_showing_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for name, more in ((path, {}), (tmp_path / "missing", {}), (path, {"authSecret": "sesame"})):
        given = {"addresses": "a", "authSecretFile": str(name), **more}
        with pytest.raises(ValueError, match="authSecretFile") as caught:
            parse_sink_options(given)
        assert "sesame" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_sparks_own_options_are_ignored() -> None:
    parse_sink_options({"addresses": "a", "path": "x", "checkpointLocation": "y", "queryName": "z"})
