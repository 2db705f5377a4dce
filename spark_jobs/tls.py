"""TLS to nsqd, of the source and of the sink: the options, and the context that they make."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.option_values import parse_bool

_FILES = ("tlsCa", "tlsCert", "tlsKey")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Settings of a TLS connection; paths of PEM files."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verifies: bool = True

    def context(self) -> ssl.SSLContext:
        """Make the context for Python's ssl.

        Raises:
            OSError: a file cannot be read, or is no PEM file.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


def parse_tls(given: Mapping[str, str]) -> TlsSettings | None:
    """Parse the options tls, tlsCa, tlsCert, tlsKey and tlsInsecure; None without tls=true.

    Raises:
        ValueError: an option has no valid value, or would be of no use.
    """
    if not parse_bool("tls", given.get("tls", "false")):
        for name in _FILES:
            # tls=false may turn it off among other settings.
            if given.get(name.lower()) and "tls" not in given:
                raise ValueError(f"option {name} needs tls=true")
        return None
    return TlsSettings(
        ca_file=given.get("tlsca"),
        cert_file=given.get("tlscert"),
        key_file=given.get("tlskey"),
        verifies=not parse_bool("tlsInsecure", given.get("tlsinsecure", "false")),
    )
