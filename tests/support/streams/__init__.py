"""A stream that is killed, and the nsqd that it reads too: what becomes of the rows.

driver    a process that runs the query, with Spark or without, until it is killed
campaign  Campaign: publishes, deletes topics, kills both; compares the rows with what was published

`python -m tests.spark.stream_kills` runs campaigns with Spark, tests/spark/test_stream_kills.py a
short one without.
"""
