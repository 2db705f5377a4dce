"""Mutants that no test could tell from the code, with the reason: they are not drawn.

Only what holds wherever it stands is here. A mutant that happens to change nothing is drawn, and
counts as alive.
"""

import ast
from collections.abc import Iterator

# A number of these that is one more or one less. (With `//` for `*` they become 0, and are drawn.)
QUANTA = {
    "read, written or copied by one call; more calls make the same bytes": """
        diskqueue/append_job._MAX_BUFFERS diskqueue/checksums/audit._READ_BYTES
        diskqueue/checksums/checks._READ_BYTES diskqueue/checksums/entries._COPY_BYTES
        diskqueue/checksums/file._WINDOW_BYTES diskqueue/reader._READ_AHEAD_BYTES
        diskqueue/salvage._SKIP_BYTES diskqueue/segment._READ_BYTES diskqueue/writer._COPY_BYTES
        diskqueue/writer._REWRITE_BYTES nsqd/broker/archive/retention._MAX_BUFFERS
        nsqd/broker/limits/causes._BLOCK_COUNT nsqd/broker/queue/message_queue.READ_MAX_BYTES
        nsqd/broker/queue/message_queue.READ_MAX_RECORDS nsqd/http/file_body.BLOCK_BYTES
        nsqd/tcp/connection.FULL_READ_BYTES nsqd/tcp/stream.MAX_DECODED_BYTES
        nsqd/tcp/stream.MAX_ENCRYPTED_BYTES nsqd/http/parser.FEED_SLICE_BYTES
        nsqd/http/reply_parser._FEED_SLICE_BYTES nsqd/http/connection.FLUSH_BYTES
    """,
    "done in one turn of the loop or of a thread; the next one does the rest": """
        diskqueue/append_job._YIELD_COUNT diskqueue/append_job._YIELD_S
        nsqd/broker/archive/archive.CHUNK_BYTES nsqd/broker/archive/archive.ROUND_BYTES
        nsqd/broker/archive/keeper.MAX_WRITES_PER_ROUND nsqd/broker/broker.EPHEMERAL_HANDOVER_COUNT
        nsqd/broker/channel.MAX_BYTES_PER_WRITE nsqd/broker/consumer.MAX_MESSAGES_PER_WRITE
        nsqd/broker/deferred.MAX_DUE_TOGETHER nsqd/broker/disposal._COUNT_PER_LOOK
        nsqd/broker/disposal._PIECES_PER_LOOK nsqd/broker/in_flight.MAX_EXPIRED_TOGETHER
        nsqd/broker/in_flight.MAX_NOTED_IDS nsqd/broker/limits/dead_letter.MAX_MESSAGES_PER_STEP
        nsqd/broker/limits/queue_bounds.MAX_BYTES_PER_STEP
        nsqd/broker/limits/queue_bounds.MAX_MESSAGES_PER_STEP nsqd/broker/move.MAX_BYTES_PER_STEP
        nsqd/broker/move.MAX_MESSAGES_PER_STEP nsqd/broker/publish_line.PART_MAX_BYTES
        nsqd/broker/publish_line.PART_MAX_COUNT nsqd/broker/publish_line.GROUP_MAX_BYTES
        nsqd/broker/publish_line.GROUP_MAX_COUNT nsqd/broker/publish_line.GROUP_MAX_PUTS
        nsqd/broker/publish_line.PARTS_PER_FREEING nsqd/broker/queue/memory._COPIED_TOGETHER
        nsqd/broker/queue/message_queue.MAX_PASSED_PIECES nsqd/broker/snapshot/copies._DUES_PER_STEP
        nsqd/broker/snapshot/copies.MAX_GROUP_COUNT nsqd/broker/snapshot/moment.MAX_CHUNK_BYTES
        nsqd/broker/snapshot/moment.MAX_SMALL_BYTES nsqd/broker/snapshot/moment.MAX_SMALL_COUNT
        nsqd/broker/topic.MAX_BYTES_PER_PIECE nsqd/broker/topic.MAX_MESSAGES_PER_PIECE
        nsqd/protocol/command_parser.MAX_MPUB_PART_COUNT nsqd/protocol/command_parser.MAX_RUN_BYTES
        nsqd/protocol/command_parser.MAX_RUN_COUNT nsqd/protocol/compression.MAX_CHUNK_COUNT
        nsqd/protocol/compression.max_encoded_bytes nsqd/http/debug.OBJECTS_PER_PART
        nsqd/http/file_body.STINT_BYTES nsqd/http/file_body.STINT_S nsqd/http/file_body.WAIT_MS
        nsqd/api/analytics._JOINED_COUNT nsqd/api/move.MAX_REPLAYED_PER_STEP
        nsqd/api/publish.PART_BYTES nsqd/api/publish._MAX_PART_COUNT
    """,
    "from which on the quicker of two ways is taken; both do the same": """
        diskqueue/finished/progress._MAX_RUN_COUNT diskqueue/finished/progress._TRIM_COUNT
        nsqd/broker/archive/keeper.NOW_BYTES nsqd/broker/archive/keeper.NOW_MIN_BYTES
        diskqueue/segment._MIN_UNIFORM_COUNT nsqd/broker/consumer.LINGER_MAX_COUNT
        nsqd/broker/consumer.LINGER_S nsqd/broker/limits/causes.LARGE_BYTES
        nsqd/protocol/command_parser.MIN_AHEAD_BYTES nsqd/protocol/command_parser.MIN_RUN_COUNT
        nsqd/http/connection.LARGE_BYTES nsqd/tcp/stream.WRITELINES_MIN_BYTES
        nsqd/broker/in_flight._MAX_OBSOLETE_COUNT
    """,
    "kept in a cache; what is not there is made again": """
        diskqueue/writer._MAX_OPEN_FDS nsqd/protocol/frames._MAX_CACHED_SIZES
        nsqd/http/known_heads.MAX_KNOWN_HEADS nsqd/http/known_heads.MAX_KNOWN_HEAD_BYTES
        nsqd/http/routes.MAX_CACHED_TARGETS nsqd/http/routes.MAX_CACHED_TARGET_BYTES
    """,
    "threads of a pool, and pauses between two looks": """
        diskqueue/checksums/syncing._MAX_THREADS nsqd/http/file_body.THREAD_COUNT
        nsqd/http/file_body.MIN_PAUSE_S nsqd/http/file_body.MAX_PAUSE_S
        nsqd/http/debug.PROFILE_INTERVAL_S
    """,
}

Span = tuple[tuple[int, int], tuple[int, int]]


def find_quanta(module: str, tree: ast.Module) -> Iterator[Span]:
    """Yield where the values of the module's quanta stand."""
    names = {it for names in QUANTA.values() for it in names.split()}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                pass
            case _:
                continue
        if value is not None and f"{module.removesuffix('.py')}.{name}" in names:
            yield span_of(value)


def find_looks_at_clocks(tree: ast.Module) -> Iterator[Span]:
    """Yield comparisons with a clock: two readings are never equal, so `>` is as good as `>=`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Call)
            and ast.unparse(part.func).endswith(("perf_counter", "monotonic"))
            for part in (node.left, *node.comparators)
        ):
            yield span_of(node)


def find_no_descriptors(tree: ast.Module) -> Iterator[Span]:
    """Yield the -1 of what has no descriptor: -2 is none either."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[*_, ast.Attribute(attr=name) | ast.Name(id=name)]):
                pass
            case ast.AnnAssign(target=ast.Attribute(attr=name) | ast.Name(id=name)):
                pass
            case _:
                continue
        for part in ast.walk(node) if name.endswith("fd") else ():
            if isinstance(part, ast.UnaryOp) and ast.unparse(part) == "-1":
                yield span_of(part)


def span_of(node: ast.expr | ast.stmt) -> Span:
    """Return where a node begins and ends."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
