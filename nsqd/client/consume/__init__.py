"""Consuming: from a message frame to its FIN.

consumer: the door. session: a running consumer. link: one nsqd. inbox: messages that wait to be
handled. message: Message and Batch with their answers. handlers: the program's functions.
flow: how much each link may send, from rdy (shares) and backoff, which are pure.
dead_letters: messages that were delivered too often.
"""
