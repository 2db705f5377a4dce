"""The commands of `python -m diskqueue` that are more than a few lines.

check   compares the records in the files of a queue with its metadata

Called by `diskqueue.__main__`. Imports the modules of diskqueue that read.
"""
