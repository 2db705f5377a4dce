"""Commands that consume and hand on. Nothing is finished before its effect is safe.

intake, budget        the consumers of such a command; how many messages fit in memory
to_file, files        `nsq to-file`: files that survive a power cut
to_http, requests     `nsq to-http`: a message as a request
hostpool, timings     which of several servers is next; how long requests took
to_nsq, json_filter   `nsq to-nsq`: to other nsqds; which messages, and which fields of them
each, dead            `nsq each`: a program for each message; `nsq dead`: dead letters
"""
