"""Commands that watch a cluster.

stat   rows of figures, again and again
"""
