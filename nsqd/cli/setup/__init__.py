"""Commands about `nsq` itself.

context      save where nsqd is          version, examples   what is installed, and what it can do
completion   scripts for shells          names               what these scripts ask for
"""
