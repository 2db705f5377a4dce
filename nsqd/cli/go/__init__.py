"""Go's names: nsq_tail, nsq_stat and to_nsq, with their flags, stdout and exit codes.

options: flags in Go's syntax, and go-nsq's options behind --consumer-opt and --producer-opt.
tail, stat, to_nsq: one program each. Neither environment nor contexts change what they do.
"""
