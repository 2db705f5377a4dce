"""Where asyncio starts: the sockets that carry the protocol to the broker and back."""
