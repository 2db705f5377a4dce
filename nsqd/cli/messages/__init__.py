"""Commands that move or show messages: pub, tail, peek.

Behind `pub`: `pieces` cuts the input into messages, `express` publishes them where all is plain and
well, `job` through a Producer in all other cases, and `tally` counts for both.
"""
