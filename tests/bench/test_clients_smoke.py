"""The benchmark of the client runs; what it measures is up to the machine."""

import pytest

from bench import clients
from bench.daemon_process import own_target, running
from bench.sinks import measure_sinks


@pytest.mark.timeout(120)
def test_every_case_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUBLISHING", "CONSUMING"):
        small = tuple((text, case, 2000, bar) for text, case, _, bar in getattr(clients, name))
        monkeypatch.setattr(clients, name, small)
    monkeypatch.setattr(clients, "_PYNSQ_COUNT", 200)

    with running(own_target("ours"), ()) as daemon:
        library = clients.measure_library(daemon, 1)
        commands = clients.measure_commands(daemon, 500, 1)
        sinks = measure_sinks(daemon, 100, clients.make_filler(daemon), clients.find_go)

    assert [name for name, _, bar in library if bar is not None] == [
        *(each[0] for each in clients.PUBLISHING),
        *(each[0] for each in clients.CONSUMING),
    ]
    assert all(rate > 0 for _, rate, _ in library)
    assert [row.name for row in commands] == ["nsq pub", "nsq tail"]
    assert all(row.rate > 0 for row in commands)
    assert {"nsq to-file", "nsq to-file --gzip", "nsq to-nsq"} <= {sink.name for sink in sinks}
    assert all(sink.rate > 0 and sink.rss_bytes > 1 << 20 for sink in sinks)
