"""Commands that move or show messages: pub, tail, peek.

Behind `pub` and `tail`: an express for what is plain and well (`express_pub`, `express_tail`), over
a `plain` connection without an event loop; and what does it in all other cases, through nsqd.client
(`job` with a Producer, `follow` with Consumers). `pieces` cuts the input of `pub` into messages,
`tally` counts them.
"""
