"""Spark over nsqd's queues on disk: a data source, a stream, a sink, and jobs that use them.

`spark_jobs.read.source.register(spark)` makes `spark.read.format("nsq")` and its kin work.
Nothing here imports nsqd: a cluster needs only this package, `diskqueue`, numpy and pyarrow.
"""
