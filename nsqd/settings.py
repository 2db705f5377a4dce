"""The options turned into the settings of each part of nsqd: parts never see the options."""

from pathlib import Path

import nsqd
from nsqd.broker.archive.retention import Retention
from nsqd.broker.broker import BrokerSettings
from nsqd.broker.channel import ChannelSettings
from nsqd.broker.queue.backend import DiskSettings
from nsqd.config.options import Options
from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.identify import IdentifyLimits


def broker_settings(options: Options) -> BrokerSettings:
    """Return the settings of topics, channels and their queues."""
    return BrokerSettings(
        mem_queue_size=options.mem_queue_size,
        disk=DiskSettings(
            data_path=Path(options.data_path or "."),
            max_bytes_per_file=options.max_bytes_per_file,
            max_msg_size=options.max_msg_size,
            sync_every=max(options.sync_every, 1),
            sync_timeout_s=options.sync_timeout_s,
        ),
        channel=ChannelSettings(
            max_msg_timeout_s=options.max_msg_timeout_s,
            max_consumers=options.max_channel_consumers,
            latency_quantiles=options.e2e_processing_latency_percentiles,
            latency_window_s=options.e2e_processing_latency_window_time_s,
        ),
        retention=Retention(options.retain_bytes, options.retain_time_s),
        limits=options.limits,
    )


def command_limits(options: Options) -> CommandLimits:
    """Return the bounds of commands."""
    return CommandLimits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_defer_ms=int(options.defer_limit_s * 1000),
    )


def identify_limits(options: Options, *, has_tls: bool) -> IdentifyLimits:
    """Return the bounds of a client's negotiation."""
    return IdentifyLimits(
        version=nsqd.PROTOCOL_VERSION,
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ms=int(options.msg_timeout_s * 1000),
        max_msg_timeout_ms=int(options.max_msg_timeout_s * 1000),
        max_heartbeat_interval_ms=int(options.max_heartbeat_interval_s * 1000),
        output_buffer_timeout_ms=int(options.output_buffer_timeout_s * 1000),
        min_output_buffer_timeout_ms=int(options.min_output_buffer_timeout_s * 1000),
        max_output_buffer_timeout_ms=int(options.max_output_buffer_timeout_s * 1000),
        max_output_buffer_size=options.max_output_buffer_size,
        has_tls=has_tls,
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        snappy=options.snappy,
        auth_required=bool(options.auth_http_addresses),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )
