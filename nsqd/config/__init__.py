"""Options and logs of the daemons, read once at the start.

program   a daemon's command: argv to options and logs; options that every daemon has; reload
options   every option of nsqd: name, kind, default, bounds, help; lookupd has its own
flags     command line, config file, help and README table of such a declaration
kinds     how numbers, durations, lists and TLS versions are spelled
limits    the limits of topics, each declared once
logs      lines on stderr in NSQ's format; redaction: without secrets; token_file: a shared one

Called by `__main__`, the daemons and the API that shows options. Imports nothing else of nsqd.
"""
