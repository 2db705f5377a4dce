"""The V2 door: clients over TCP and unix sockets.

connection   one client: its bytes, its commands, its timer, its end; end_counts: by cause
handlers     one function for each command (HANDLERS, _NEED_RIGHTS); Replies: answers in order
stream       TLS and compression around a socket; outgoing: large writes, encoded in slices
read_gate    the reasons why a client is not read from
auth         the auth servers and the rights of one client; auth_patterns: names that they allow

The daemon makes a `V2Connection` for each client, stats read them. Imports broker, protocol, http
(its client) and runtime.
"""
