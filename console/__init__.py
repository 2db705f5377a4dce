"""The console: a page for browsers, served by nsqd for itself and by nsqadmin for a cluster.

assets   the table of files with content types and digests, the page's HTML, and their headers
static   the page: native ES modules without a build step; static/README.md is its map

Called by nsqd.api and nsqadmin. Imports nothing of ours.
"""
