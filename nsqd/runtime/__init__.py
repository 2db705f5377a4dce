"""The ground that the daemons stand on: process, loop, sockets, TLS, data path.

process         a daemon from start to exit code, signals; systemd: tells the service manager
event_loop      the broker's scheduler, tasks, polling, garbage collection; loop_watch: its lag
turns, slices   much work in slices, in round robin; long documents so
listen, tls     listening sockets; TLS contexts and TLS as a codec
data_path       lock and newest date of the directory; metadata_store: nsqd.dat
disk_watch      room on the disk, and when a failing disk works again; memory: keeps and clears it
descriptors     keeps some for HTTP; door_counts, refusals: errors of the doors by cause
Called by the daemons and doors. Imports config and broker (not where lookupd comes by).
"""
