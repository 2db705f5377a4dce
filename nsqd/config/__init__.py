"""Options, flags and logs of the daemons."""
