"""The rights of callers at nsqadmin's door, and the audit trail of their changes.

guard    the checks of every request; its caller       roles    rights, users of a header
tokens   tokens of a file, sessions, wrong guesses     audit    the trail: caller, change, outcome
changes  rights, audit and notification of a change    notifications   posts changes as JSON

Called by nsqadmin.api and the daemon.
"""
