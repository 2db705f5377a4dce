"""Publishing: from `Producer.publish` to nsqd's OK.

producer: the door. queue: messages that wait, bounded. batch: messages that leave in one command.
sender: one way to nsqd, with the commands that have no answer yet.
"""
