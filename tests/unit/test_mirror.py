"""The test of a module is found by its path: tests/unit/nsqd/broker/test_topic.py for topic.py.

A module with several files of tests has them by prefix (test_topic_limits.py). A module that is
tested elsewhere stands in ELSEWHERE with the file that does it.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("console", "diskqueue", "lookupd", "nsqadmin", "nsqd", "spark_jobs")

# Modules without behaviour of their own: exceptions, protocols and records that others fill.
VALUES = {
    "diskqueue/errors.py",
    "nsqd/broker/errors.py",
    "nsqd/broker/scheduler.py",
    "nsqd/client/errors.py",
    "nsqd/client/stats.py",
    "nsqd/node.py",
}

ELSEWHERE = {
    # What they do is only seen from outside: over sockets, or as a process.
    "nsqd/daemon.py": "wire/test_lifecycle.py",
    "nsqd/http/server.py": "wire/test_http_server.py",
    "nsqd/reload.py": "wire/test_reload.py",
    "nsqd/stats/delta.py": "wire/test_stats_delta.py",
    "nsqd/drain.py": "wire/test_drain.py",
    "lookupd/__main__.py": "wire/test_lookupd_process.py",
    "lookupd/daemon.py": "wire/test_lookupd_process.py",
    "lookupd/http_api.py": "wire/test_lookupd_http.py",
    "lookupd/metrics.py": "wire/test_lookupd_http.py",
    "nsqd/client/connection.py": "client/test_transports.py",
    "nsqd/client/sync.py": "client/test_sync.py",
    "nsqd/client/publish/producer.py": "client/test_producer.py",
    "nsqd/client/publish/sender.py": "client/test_faults.py",
    "nsqd/client/consume/consumer.py": "client/test_consumer.py",
    "nsqd/client/consume/dead_letters.py": "client/test_consumer.py",
    "nsqd/client/consume/handlers.py": "client/test_consumer.py",
    "nsqd/client/consume/link.py": "client/test_consumer.py",
    "nsqd/client/consume/session.py": "client/test_consumer.py",
    "nsqd/cli/admin/changes.py": "cli/test_commands.py",
    "nsqd/cli/admin/clients.py": "cli/test_administration.py",
    "nsqd/cli/admin/config.py": "cli/test_administration.py",
    "nsqd/cli/admin/limits.py": "cli/test_administration.py",
    "nsqd/cli/admin/nodes.py": "cli/test_commands.py",
    "nsqd/cli/admin/topics.py": "cli/test_commands.py",
    "nsqd/cli/cluster.py": "cli/test_commands.py",
    "nsqd/cli/loop.py": "cli/test_commands.py",
    "nsqd/cli/messages/follow.py": "cli/test_commands.py",
    "nsqd/cli/messages/job.py": "cli/test_pub_faults.py",
    "nsqd/cli/messages/peek.py": "cli/test_commands.py",
    # Its two users are tested against an nsqd that follows a script.
    "nsqd/cli/messages/plain.py": "unit/nsqd/cli/messages/test_express_tail.py",
    "nsqd/cli/messages/pub.py": "cli/test_commands.py",
    "nsqd/cli/messages/tail.py": "cli/test_commands.py",
    "nsqd/cli/programs/bench.py": "cli/test_programs.py",
    "nsqd/cli/programs/disk.py": "unit/nsqd/cli/programs/test_programs.py",
    "nsqd/cli/programs/spark.py": "unit/nsqd/cli/programs/test_programs.py",
    "nsqd/cli/watch/doctor.py": "cli/test_watching.py",
    "nsqd/cli/watch/top.py": "cli/test_watching.py",
    "nsqd/cli/go/stat.py": "cli/test_go_names.py",
    "nsqd/cli/go/tail.py": "cli/test_go_names.py",
    # Routes are thin, and their contract is HTTP.
    "nsqd/api/console.py": "wire/test_console.py",
    "nsqd/api/router.py": "wire/test_http_api.py",
    "nsqd/api/topics.py": "wire/test_http_api.py",
    # Snapshots are taken of a running daemon.
    "nsqd/analytics/manifest.py": "wire/test_snapshots.py",
    "nsqd/analytics/parts.py": "wire/test_snapshots.py",
    "nsqd/analytics/segments.py": "wire/test_snapshots.py",
    "nsqd/analytics/service.py": "wire/test_snapshots.py",
    "nsqd/analytics/snapshot.py": "wire/test_snapshots.py",
    "nsqd/analytics/spill.py": "wire/test_snapshots.py",
    "nsqd/analytics/threads.py": "wire/test_snapshots.py",
    "nsqadmin/__main__.py": "nsqadmin/test_process.py",
    "nsqadmin/daemon.py": "nsqadmin/test_process.py",
    "nsqadmin/access/changes.py": "nsqadmin/test_actions.py",
    "nsqadmin/access/guard.py": "nsqadmin/test_door.py",
    "nsqadmin/api/action_requests.py": "nsqadmin/test_actions.py",
    "nsqadmin/api/actions.py": "nsqadmin/test_actions.py",
    "nsqadmin/api/clients.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/compat.py": "nsqadmin/test_compat.py",
    "nsqadmin/api/detail_shapes.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/details.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/figures.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/limits.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/messages.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/pages.py": "nsqadmin/test_door.py",
    "nsqadmin/api/replies.py": "nsqadmin/test_console_api.py",
    "nsqadmin/api/session.py": "nsqadmin/test_door.py",
    "nsqadmin/api/shared.py": "nsqadmin/test_console_api.py",
    "nsqadmin/cluster/collector.py": "nsqadmin/test_collector.py",
    "nsqadmin/cluster/commands.py": "nsqadmin/test_actions.py",
    "nsqadmin/cluster/view.py": "unit/nsqadmin/cluster/test_findings.py",
    # They need Spark.
    "spark_jobs/__main__.py": "spark/test_jobs.py",
    "spark_jobs/commands.py": "spark/test_jobs.py",
    "spark_jobs/source.py": "spark/test_source.py",
    "spark_jobs/jobs/export.py": "spark/test_jobs.py",
    "spark_jobs/jobs/progress.py": "spark/test_progress.py",
    "spark_jobs/jobs/replay.py": "spark/test_jobs.py",
    "spark_jobs/jobs/ship.py": "unit/spark_jobs/ship/test_shipment.py",
    "spark_jobs/read/skipped.py": "spark/test_tally.py",
    "spark_jobs/tally.py": "spark/test_tally.py",
    # What nodes answer is only seen from a running nsqd.
    "spark_jobs/read/fleet/client.py": "spark/test_fleet.py",
    "spark_jobs/read/fleet/leases.py": "spark/test_fleet.py",
    "spark_jobs/read/fleet/lookup.py": "spark/test_fleet.py",
    "spark_jobs/read/fleet/manifest.py": "spark/test_fleet.py",
    "spark_jobs/read/fleet/remote_file.py": "spark/test_fleet.py",
    "spark_jobs/read/fleet/snapshot.py": "spark/test_fleet.py",
    # Parts of a neighbour, through which they are tested.
    "nsqd/config/kinds.py": "unit/nsqd/config/test_flags.py",
    "nsqd/http/arguments.py": "unit/nsqd/http/test_routes.py",
    "nsqd/lookup/conversation.py": "unit/nsqd/lookup/test_peer.py",
    "nsqd/lookup/topic_starter.py": "unit/nsqd/lookup/test_registration.py",
    "nsqd/stats/clients.py": "unit/nsqd/stats/test_snapshot.py",
    "spark_jobs/read/files/nsqd_dat.py": "unit/spark_jobs/read/test_inventory.py",
    "spark_jobs/read/files/identity.py": "unit/spark_jobs/read/test_stream.py",
    "spark_jobs/read/files/open_segments.py": "unit/spark_jobs/read/test_stream.py",
    "spark_jobs/read/look.py": "unit/spark_jobs/read/test_stream.py",
}

MODULES = sorted(
    str(path.relative_to(ROOT))
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
)


def find_tests(module: str) -> list[Path]:
    """Return the test files that a module has by its path."""
    path = Path(module)
    folder = ROOT / "tests" / "unit" / path.parent
    name = path.stem.strip("_")
    return [*folder.glob(f"test_{name}.py"), *folder.glob(f"test_{name}_*.py")]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_tests(module: str) -> None:
    if module in VALUES:
        return
    if module in ELSEWHERE:
        assert (ROOT / "tests" / ELSEWHERE[module]).is_file()
        assert not find_tests(module), "it has a test of its own now"
    else:
        assert find_tests(module)


def test_the_tables_name_modules_that_exist() -> None:
    assert set(ELSEWHERE) | VALUES <= set(MODULES)
