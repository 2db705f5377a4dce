"""Commands about `nsq` itself.

context   save where nsqd is
"""
