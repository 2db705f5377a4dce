"""Who may do what at nsqadmin's door, and what was done.

guard    the checks of every request; who its caller is    roles    rights, users of a header
tokens   tokens of a file, sessions, wrong guesses         audit    who changed what
changes  what surrounds every change                       notifications   posts each of them

Called by nsqadmin.api and the daemon.
"""
