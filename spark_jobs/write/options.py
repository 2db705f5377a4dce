"""The options of a write, parsed once from Spark's strings; `sink.py` explains them."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.option_values import parse_count, parse_size, refuse_unknown
from spark_jobs.tls import parse_tls
from spark_jobs.write.publisher import PublisherSettings

SINK_OPTIONS = (
    "addresses",
    "lookupd",
    "topic",
    "batchSize",
    "batchBytes",
    "window",
    "retries",
    "timeout",
    "maxRate",
    "tls",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsInsecure",
    "authSecret",
    "authSecretFile",
    "summaryPath",
)
# Spark itself adds these to the options of a stream; the last is added by `publish`.
_SPARKS_OWN = ("path", "checkpointlocation", "queryname", "tally")
_DEFAULT_PORT = 4150
# The bound of nsqd.
_MAX_SECRET_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write, parsed."""

    publisher: PublisherSettings
    topic: str | None
    batch_count: int
    batch_bytes: int
    max_rate: int | None
    summary_path: str | None
    # Where tasks tell how much is acknowledged; `publish` alone sets it.
    tally: str | None = None


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write.

    Raises:
        ValueError: an option is unknown, missing or has no valid value.
    """
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(given, SINK_OPTIONS, _SPARKS_OWN)
    addresses = _split(given.get("addresses", ""))
    lookupd = _split(given.get("lookupd", ""))
    if bool(addresses) == bool(lookupd):
        raise ValueError("the sink needs either addresses (of nsqd) or lookupd (of nsqlookupd)")
    publisher = PublisherSettings(
        addresses=tuple(map(_parse_address, addresses)),
        lookupd=lookupd,
        tls=parse_tls(given),
        auth_secret=_find_secret(given),
        window_count=parse_count("window", given.get("window", "4"), maximum=1000),
        retry_count=parse_count("retries", given.get("retries", "5"), minimum=0, maximum=1000),
        timeout_s=float(parse_count("timeout", given.get("timeout", "30"), maximum=86400)),
    )
    return SinkOptions(
        publisher=publisher,
        topic=given.get("topic"),
        batch_count=parse_count("batchSize", given.get("batchsize", "1000"), maximum=1_000_000),
        batch_bytes=parse_size("batchBytes", given.get("batchbytes", "1m")),
        max_rate=parse_count("maxRate", given["maxrate"]) if "maxrate" in given else None,
        summary_path=given.get("summarypath"),
        tally=given.get("tally"),
    )


def _find_secret(given: Mapping[str, str]) -> str | None:
    """Return the secret for AUTH; no error shows it, or a part of it."""
    path = given.get("authsecretfile")
    if path is None:
        return given.get("authsecret")
    if "authsecret" in given:
        raise ValueError("the secret is in authSecret or in authSecretFile, not in both")
    try:
        with open(path, "rb") as file:
            secret = file.read(_MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise ValueError(f"option authSecretFile: {error.strerror}: {path}") from None
    if not secret or len(secret) > _MAX_SECRET_BYTES:
        raise ValueError(
            f"option authSecretFile: {path} does not hold a secret of 1 to"
            f" {_MAX_SECRET_BYTES} bytes"
        )
    try:
        return secret.decode()
    except UnicodeDecodeError:
        raise ValueError(f"option authSecretFile: {path} does not hold text") from None


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, _DEFAULT_PORT
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"option addresses has host:port, not {text!r}")
    return host.strip("[]"), int(port)
