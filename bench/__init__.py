"""A load generator for nsqd: named scenarios, ours against another daemon, alternately.

It speaks the wire protocol with its own prebuilt bytes and imports nothing of the daemon,
so a mistake in the one cannot hide in the other. Run it with `python -m bench --help`.
"""
