"""The nodes of a fleet: given by address, or those that nsqlookupd knows."""

import logging
from dataclasses import replace
from typing import Any

from spark_jobs.read.fleet.client import NodeClient, NodeError, RefusedError
from spark_jobs.read.fleet.options import FleetOptions

_logger = logging.getLogger(__name__)


class SameAddressError(NodeError):
    """Raised when two nodes have given nsqlookupd the same address."""


def find_nodes(options: FleetOptions) -> list[str]:
    """Return the URLs of the nodes, in order, each once.

    Raises:
        NodeError: no nsqlookupd answers, they know no node, or two at one address.
    """
    if options.nsqd:
        return [_url(address, is_tls=options.tls is not None) for address in options.nsqd]
    found: dict[str, None] = {}
    failures = []
    for address in options.lookupd:
        try:
            for url in _ask(address, options):
                found[url] = None
        except SameAddressError:
            raise  # to read one of them would look as if it were all
        except NodeError as error:
            failures.append(str(error))
            _logger.warning("nsqlookupd did not answer %s", error)
    if not found:
        reasons = f": {'; '.join(failures)}" if failures else ""
        raise NodeError(f"nsqlookupd {', '.join(options.lookupd)} knows no nsqd{reasons}")
    return sorted(found)


def _ask(address: str, options: FleetOptions) -> list[str]:
    # nsqlookupd has no tokens and needs no patience: there are others.
    plain = replace(options, token_file=None, retry_count=min(options.retry_count, 2))
    client = NodeClient(_url(address, is_tls=False), plain)
    try:
        answer, _ = client.fetch_json("GET", "/nodes")
        hosts: dict[str, str] = {}
        for producer in _producers(answer):
            url, host = _node_url(producer, options), str(producer.get("hostname", ""))
            if hosts.setdefault(url, host) != host:
                raise SameAddressError(
                    f"nsqlookupd {address} knows two nodes at {url.partition('://')[2]}, of the"
                    f" hosts {hosts[url]} and {host}: give each an address of its own"
                    " (--broadcast-address), or name the nodes instead"
                )
        return list(hosts)
    except RefusedError as error:
        reason = f"it answers {error.status} {error.code}"
        raise NodeError(f"{address} is no nsqlookupd: {reason}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NodeError(f"{address}: not the answer of an nsqlookupd: {error!r}") from error
    finally:
        client.close()


def _producers(answer: Any) -> list[Any]:
    # Before version 1.0 the answer was wrapped.
    return list(answer.get("data", answer).get("producers") or [])


def _node_url(producer: Any, options: FleetOptions) -> str:
    host = str(producer["broadcast_address"])
    port = options.https_port if options.tls else int(producer["http_port"])
    text = f"[{host}]" if ":" in host else host
    return f"{'https' if options.tls else 'http'}://{text}:{port}"


def _url(address: str, *, is_tls: bool) -> str:
    return address if "://" in address else f"{'https' if is_tls else 'http'}://{address}"
