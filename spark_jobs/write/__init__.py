"""Rows as messages of a running nsqd.

publisher.py  commands of NSQ's protocol V2, and a connection that sends them; knows no Spark
options.py    the options of a write
sink.py       the sink of format nsq: a DataFrame's rows as commands
Called by source.py and jobs/replay.py. May import option_values, pace, tls.
"""
