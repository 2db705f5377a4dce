"""How to reach an object store: options `s3.*`, Hadoop's settings, a URI's query, the environment.

In this order, value by value; the keys are one value. They are found on the driver and go with the
options to the executors, which need neither the files nor the environment.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

STORE_OPTIONS = (
    "s3.endpoint",
    "s3.region",
    "s3.accessKey",
    "s3.secretKey",
    "s3.sessionToken",
    "s3.accessKeyFile",
    "s3.secretKeyFile",
)
_KEY_OPTIONS = frozenset(
    name.lower() for name in STORE_OPTIONS if name not in ("s3.endpoint", "s3.region")
)
_MAX_KEY_BYTES = 4096
_ENDPOINT = re.compile(r"(?:https?://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?/?")
# Arrow's name, and those of Hadoop.
_S3_SCHEMES = ("s3", "s3a", "s3n")
# `?` is also a glob's: a query has a name and a value.
_QUERY = re.compile(r"\?[A-Za-z_]+=")
_QUERY_NAMES = ("endpoint_override", "region", "scheme")
_HADOOP_SETTINGS = {
    "s3.endpoint": "fs.s3a.endpoint",
    "s3.region": "fs.s3a.endpoint.region",
    "s3.accessKey": "fs.s3a.access.key",
    "s3.secretKey": "fs.s3a.secret.key",
    "s3.sessionToken": "fs.s3a.session.token",
}
_HADOOP_TLS = "fs.s3a.connection.ssl.enabled"
# Spark sets it where nothing is set.
_AWS_ENDPOINT = "s3.amazonaws.com"


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials; no text of them shows a part of them."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How to reach an object store; picklable. None is the default of the store's own library."""

    # A URL without a path.
    endpoint: str | None = None
    region: str | None = None
    keys: Keys | None = None
    # Of a URI that is not of S3, for pyarrow.fs; may hold secrets.
    query: str = field(default="", repr=False)


AMBIENT = StoreSettings()


def parse_store_options(
    given: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> StoreSettings:
    """Parse the options of an object store, whose names are in lower case here.

    Raises:
        ValueError: an option has no valid value, or a file cannot be read. No key is in the text.
    """
    endpoint = (
        given.get("s3.endpoint")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    region = (
        given.get("s3.region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
    )
    return StoreSettings(
        endpoint=parse_endpoint("option s3.endpoint", endpoint) if endpoint else None,
        region=region or None,
        keys=_parse_keys(given) or _find_keys(environment),
    )


def parse_endpoint(name: str, text: str) -> str:
    """Return an endpoint as a URL; without a scheme it speaks HTTPS.

    Raises:
        ValueError: the text is no endpoint.
    """
    if not _ENDPOINT.fullmatch(text):
        # What stands before an @ may be a password.
        shown = text.rpartition("@")[2]
        raise ValueError(f"{name} is a URL such as http://127.0.0.1:9000, not {shown!r}")
    return (text if "://" in text else f"https://{text}").rstrip("/")


def _parse_keys(given: Mapping[str, str]) -> Keys | None:
    access_key = _value_or_file(given, "s3.accessKey")
    secret_key = _value_or_file(given, "s3.secretKey")
    if access_key is None and secret_key is None:
        if given.get("s3.sessiontoken"):
            raise ValueError("option s3.sessionToken needs s3.accessKey and s3.secretKey")
        return None
    if access_key is None or secret_key is None:
        raise ValueError("options s3.accessKey and s3.secretKey need each other")
    return Keys(access_key, secret_key, given.get("s3.sessiontoken"))


def _find_keys(environment: Mapping[str, str]) -> Keys | None:
    access_key = environment.get("AWS_ACCESS_KEY_ID")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        return None
    return Keys(access_key, secret_key, environment.get("AWS_SESSION_TOKEN"))


def _value_or_file(given: Mapping[str, str], name: str) -> str | None:
    text, path = given.get(name.lower()), given.get(f"{name}File".lower())
    if text and path:
        raise ValueError(f"the key is in {name} or in {name}File, not in both")
    if not path:
        return text or None
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise ValueError(f"option {name}File: {error.strerror}: {path}") from None
    if not content.isascii() or not 0 < len(content) <= _MAX_KEY_BYTES or b"\n" in content:
        raise ValueError(f"option {name}File: {path} does not hold one key in one line")
    return content.decode()


def split_uri(text: str, store: StoreSettings) -> tuple[str, StoreSettings]:
    """Part a URI into the place, which may be shown and globbed, and how to reach it.

    `s3://bucket/node?endpoint_override=127.0.0.1:9000&scheme=http` and `s3://key:secret@bucket`
    are those of pyarrow.fs.

    Raises:
        ValueError: a part of the URI is not known. No key is in the text.
    """
    scheme, found, rest = text.partition("://")
    if not found:
        return text, store
    query = ""
    for match in _QUERY.finditer(rest):
        rest, query = rest[: match.start()], rest[match.start() + 1 :]
        break
    if scheme.lower() not in _S3_SCHEMES:
        return f"{scheme}://{rest}", replace(store, query=query) if query else store
    authority, slash, path = rest.partition("/")
    login, _, bucket = authority.rpartition("@")
    name = f"{scheme}://{bucket}{slash}{path}"
    access_key, _, secret_key = login.partition(":")
    if login and not (access_key and secret_key):
        raise ValueError(f"a URI with keys is s3://ACCESSKEY:SECRETKEY@..., for {name}")
    if login:
        store = replace(store, keys=Keys(unquote(access_key), unquote(secret_key)))
    return name, _apply_query(name, query, store)


def _apply_query(name: str, query: str, store: StoreSettings) -> StoreSettings:
    values = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [each for each in values if each not in _QUERY_NAMES]
    if unknown:
        known = ", ".join(_QUERY_NAMES)
        raise ValueError(f"the URI of {name} has {known} in its query, not {unknown[0]!r}")
    if "endpoint_override" in values:
        endpoint = values["endpoint_override"]
        if "://" not in endpoint and "scheme" in values:
            endpoint = f"{values['scheme']}://{endpoint}"
        store = replace(store, endpoint=parse_endpoint("endpoint_override", endpoint))
    return replace(store, region=values.get("region") or store.region)


def find_hadoop_options(get: Callable[[str], str | None]) -> dict[str, str]:
    """Return the options that Hadoop's settings `fs.s3a.*` stand for.

    Args:
        get: returns the value of a setting.
    """
    found = {name: get(setting) for name, setting in _HADOOP_SETTINGS.items()}
    options = {name: text for name, text in found.items() if text}
    endpoint = options.get("s3.endpoint", "")
    if endpoint.endswith(_AWS_ENDPOINT):
        del options["s3.endpoint"]
    elif endpoint and "://" not in endpoint:
        scheme = "http" if get(_HADOOP_TLS) == "false" else "https"
        options["s3.endpoint"] = f"{scheme}://{endpoint}"
    if not ("s3.accessKey" in options and "s3.secretKey" in options):
        # Half of them is of no use; other providers of Hadoop are not asked.
        for name in ("s3.accessKey", "s3.secretKey", "s3.sessionToken"):
            options.pop(name, None)
    return options


def add_defaults(given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return options with those of a store that are not given; keys are not mixed."""
    names = {name.lower() for name in given}
    has_keys = not names.isdisjoint(_KEY_OPTIONS)
    more = {
        name: text
        for name, text in defaults.items()
        if name.lower() not in names and not (has_keys and name.lower() in _KEY_OPTIONS)
    }
    return {**more, **given}


def is_s3(name: str) -> bool:
    """Tell whether a place is in S3, or a store that speaks like it."""
    return urlsplit(name).scheme in _S3_SCHEMES
