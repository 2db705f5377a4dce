"""What nsqd's HTTP door offers."""
