"""Tasks of event loops, read from a process's memory."""
