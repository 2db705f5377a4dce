"""The command `nsq`, and Go's names for parts of it.

main, commands   argv to a command; the table of all   arguments, consuming   flags they share
target, contexts where nsqd and nsqlookupd are: flags, environment, saved contexts
cluster, figures HTTP calls to all nodes; /stats added up           output      tables, JSON, colour
loop, signals, progress, formats   the event loop and its end; how far it is; messages as lines
messages, sinks, admin, watch, programs, setup: the commands, by noun      go   Go's names and flags

Each command has EXAMPLES, `add_arguments`, `run`, stands in `commands`, is imported when it runs.
Imports nsqd.client, http.client, config; nothing imports this package. rich: for terminals only.
"""
