"""Settings of object stores: where they come from, and that no text shows a key."""

import pickle
from pathlib import Path

import pytest

from spark_jobs.object_store import (
    AMBIENT,
    Keys,
    StoreSettings,
    find_hadoop_options,
    parse_store_options,
    split_uri,
)
from spark_jobs.read.options import parse_read_options

GIVEN = {"s3.accesskey": "AKIA-given", "s3.secretkey": "s3cret"}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIA-environment",
    "AWS_SECRET_ACCESS_KEY": "hidden",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000/",
    "AWS_REGION": "eu-1",
}


def test_options_come_before_the_environment() -> None:
    from_environment = parse_store_options({}, ENVIRONMENT)
    given = parse_store_options(GIVEN | {"s3.endpoint": "minio:9000"}, ENVIRONMENT)

    assert from_environment == StoreSettings(
        "http://127.0.0.1:9000", "eu-1", Keys("AKIA-environment", "hidden")
    )
    assert given == StoreSettings("https://minio:9000", "eu-1", Keys("AKIA-given", "s3cret"))
    assert parse_store_options({}, {}) == AMBIENT


def test_keys_of_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("AKIA-file\n")
    (tmp_path / "s").write_text("s3cret\n")
    files = {"s3.accesskeyfile": f"{tmp_path}/a", "s3.secretkeyfile": f"{tmp_path}/s"}

    assert parse_store_options(files, {}).keys == Keys("AKIA-file", "s3cret")
    with pytest.raises(ValueError, match="not in both"):
        parse_store_options(files | GIVEN, {})
    (tmp_path / "s").write_text("s3cret\nmore")
    with pytest.raises(ValueError, match="does not hold one key") as caught:
        parse_store_options(files, {})
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ValueError, match=r"s3\.accessKeyFile: No such file"):
        parse_store_options({"s3.accesskeyfile": f"{tmp_path}/none"}, {})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"s3.accesskey": "a"}, "need each other"),
        ({"s3.secretkey": "a"}, "need each other"),
        ({"s3.sessiontoken": "a"}, "needs s3.accessKey"),
        ({"s3.endpoint": "http://u:s3cret@host"}, "not 'host'"),
        ({"s3.endpoint": "ftp://host"}, "is a URL such as"),
    ],
)
def test_settings_that_are_not_valid(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        parse_store_options(given, {})

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "name", "store"),
    [
        ("/a/b?c=d", "/a/b?c=d", AMBIENT),
        ("s3://b/n?", "s3://b/n?", AMBIENT),
        ("s3://b/n??region=x", "s3://b/n?", StoreSettings(region="x")),
        (
            "s3a://b/n?endpoint_override=h:1&scheme=http",
            "s3a://b/n",
            StoreSettings("http://h:1"),
        ),
        (
            "s3://b/n?endpoint_override=http%3A%2F%2Fh:1",
            "s3://b/n",
            StoreSettings("http://h:1"),
        ),
        ("s3://k:s%2Fx@b/n", "s3://b/n", StoreSettings(keys=Keys("k", "s/x"))),
        ("gs://b/n?project_id=7", "gs://b/n", StoreSettings(query="project_id=7")),
    ],
)
def test_the_parts_of_a_uri(uri: str, name: str, store: StoreSettings) -> None:
    assert split_uri(uri, AMBIENT) == (name, store)


@pytest.mark.parametrize("uri", ["s3://k:s3cret@b/n?what=s3cret", "s3://s3cret@b/n"])
def test_a_uri_that_is_not_valid(uri: str) -> None:
    with pytest.raises(ValueError, match="URI") as caught:
        split_uri(uri, AMBIENT)

    assert "s3cret" not in str(caught.value)


def test_settings_of_hadoop() -> None:
    settings = {
        "fs.s3a.endpoint": "127.0.0.1:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.access.key": "a",
        "fs.s3a.secret.key": "b",
    }

    assert find_hadoop_options(settings.get) == {
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.accessKey": "a",
        "s3.secretKey": "b",
    }
    # Spark sets it by itself, and half of the keys is none.
    found = find_hadoop_options(
        {"fs.s3a.endpoint": "s3.amazonaws.com", "fs.s3a.access.key": "a"}.get
    )
    assert found == {}


def test_options_of_a_read_show_no_key_and_go_to_executors() -> None:
    options = parse_read_options(
        {
            "path": "s3://k:s3cret@b/n",
            "s3.accessKey": "AKIA-given",
            "s3.secretKey": "s3cret",
            "s3.sessionToken": "s3cret-token",
        }
    )

    assert pickle.loads(pickle.dumps(options)) == options
    assert options.place == "s3://b/n"
    assert "s3cret" not in repr(options)
    assert "AKIA" not in repr(options)
