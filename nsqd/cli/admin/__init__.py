"""Commands that list and change the topics, channels and nodes of nsqd and nsqlookupd.

topics    `nsq topic`, `nsq channel`        nodes     `nsq node`      clients   `nsq client`
limits    `nsq limits`                      config    `nsq config`
changes   what they share: may this context be changed, is the user sure, what was done where
"""
