"""Commands that are programs of their own.

disk, spark        hand their arguments on to `python -m diskqueue` and to `nsqd-spark`
bench, latencies   measure an nsqd from here; a histogram of times
"""
