"""Go's names, with their flags, stdout and exit codes.

options: flags in Go's syntax, and go-nsq's options behind --consumer-opt and --producer-opt.
tail, stat, to_nsq, nsq_to_file, nsq_to_http, nsq_to_nsq: one program each. Neither environment nor
contexts change what they do.
"""
