"""The protocol between agents: sealed frames, the greeting, clock offsets and the messages of watches."""
