"""Commands that watch a cluster.

stat                  rows of figures, again and again
top                   a full screen; view: what it shows and what keys do, screen: how it looks,
                      keys: the terminal
rows                  queues, and how they change: for top and check
check                 one line and an exit code for Nagios
doctor, findings      look for what is wrong with a cluster; the rules
"""
