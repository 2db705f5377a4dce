"""nsqadmin's HTTP API; docs/contract/console_api.md is the contract of /api/v2.

compat, go_shapes      the Go nsqadmin's /api                  replies   JSON in and out, rights
figures                overview, queues, history: no calls     shared    one question for all
details, detail_shapes   one topic, channel, node              session   me, sign-in, audit trail
clients, limits, messages   asked from the nodes on demand     pages     page, files, /config
actions, action_requests    changes of many queues
"""
