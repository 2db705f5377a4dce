"""NSQ's formats, sans I/O: bytes to values and back, with no event loop and no clock.

command_parser   bytes of a V2 client to the values in `commands`, which knows those allowed now
command_lines    the parameters of each command; a command without a body is added here, in
                 commands and in nsqd.tcp.handlers, and the parser stays as it is
frames, errors   replies, messages and errors to a V2 client; identify: its settings
compression      snappy and deflate; names: topics and channels; go_json: JSON as Go reads it
lookup           between nsqd and nsqlookupd; client_wire: V2 as clients speak it, Spark's too

The doors, the lookup client and nsqlookupd call it. Imports only diskqueue.envelope.
"""
