"""The targets, by name: one for each reader of bytes that nobody vouches for."""

from tests.fuzz import disk_targets, http_targets, lookup_targets, option_targets, wire_targets
from tests.fuzz.target import Target

# What each format is made of.
_COMMANDS = (
    *(b"PUB t\n", b"MPUB t\n", b"DPUB t 0\n", b"SUB t c\n", b"RDY 1\n", b"REQ ", b"TOUCH "),
    *(b"FIN 0123456789abcdef\n", b"IDENTIFY\n", b"AUTH\n", b"NOP\n", b"CLS\n", b"\r\n", b"\n"),
    *(b" ", b"#ephemeral"),
)
_JSON = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"false", b"-1", b"1e999"),
    *(b'"msg_timeout":', b'"heartbeat_interval":', b'"tls_v1":true', b'"snappy":true'),
    *(b'"feature_negotiation":true', b'"deflate":true', b'"deflate_level":', b'"sample_rate":'),
    *(b"\\ud800", b"[" * 2000),
)
_HTTP = (
    *(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /pub HTTP/1.1\r\nHost: a\r\n", b"\r\n"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"\n"),
    *(b"5\r\nhello\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Host: b\r\n"),
    *(b"Upgrade: x\r\nConnection: upgrade\r\n", b" HTTP/1.0", b"ffffffffffffffff\r\n", b"\r\n\r\n"),
    *(b" ", b"\t", b"\0", b"%2e%2e", b"topic=", b"&"),
)
_NSQD_DAT = (b'"topics":', b'"name":', b'"paused":true', b'"channels":', b'"version":', *_JSON)
_LOOKUP = (b"  V1", b"PING\n", b"REGISTER t c\n", b"UNREGISTER t\n", b"\0\0\0\2OK", *_JSON)
_RECORD = b"\0\0\0\x1c\x17\x97\x9c\xfe6*\0\0\0\x010123456789abcdefhi"
_QUEUE = (_RECORD, disk_targets.MARK, disk_targets.FINISHED, b"0,0\n", b"1,32\n", b"-1\n")
_STREAMS = (b"\xff\x06\0\0sNaPpY", b"\0\0\xff\xff")
_FLAGS = (b"\0--", b"=", b"-1", b"1e9", b"1h")
_TOML = (b" = ", b"[[", b'"""', b"[" * 500)
_PATTERNS = (b"(", b")", b"{1,1000}", b"[[:alpha:]]", b"(?i)")
_LOGGED = (b"://", b"@", b"?token=", b"\x1b[2J", b"\r\n")

TARGETS = {
    target.name: target
    for target in (
        Target("wire", wire_targets.check_commands, _COMMANDS, max_bytes=20_000),
        Target("identify", wire_targets.check_identify, _JSON),
        Target("compression", wire_targets.check_compression, _STREAMS),
        Target("http", http_targets.check_requests, _HTTP, max_bytes=20_000),
        Target("http_target", http_targets.check_target, _HTTP, max_bytes=1000),
        Target("segment", disk_targets.check_segment, (_RECORD,)),
        Target("queue", disk_targets.check_queue_files, _QUEUE),
        Target("queue_metadata", disk_targets.check_queue_metadata, (b",", b"\n"), max_bytes=200),
        Target("due_log", disk_targets.check_due_log),
        Target("nsqd_dat", disk_targets.check_nsqd_dat, _NSQD_DAT),
        Target("lookup_commands", lookup_targets.check_commands, _LOOKUP),
        Target("lookup_replies", lookup_targets.check_replies, _LOOKUP),
        Target("command_line", option_targets.check_command_line, _FLAGS),
        Target("config_file", option_targets.check_config_file, _TOML),
        Target("pattern", option_targets.check_pattern, _PATTERNS),
        Target("log_line", option_targets.check_log_line, _LOGGED, max_bytes=20_000),
    )
}
