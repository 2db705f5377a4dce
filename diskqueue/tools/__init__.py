"""The commands of `python -m diskqueue` that are more than a few lines, and text for people.

check        compares the records in the files of a queue with its metadata
plain_text   how text of strangers is shown, here and in logs, /stats and tables

Called by `diskqueue.__main__`, plain_text also by nsqd and Spark's jobs. Imports the modules of
diskqueue that read.
"""
