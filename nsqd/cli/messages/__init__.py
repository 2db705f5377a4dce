"""Commands that move or show messages: pub, tail, peek."""
