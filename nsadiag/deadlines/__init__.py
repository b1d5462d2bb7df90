"""Deadlines for whatever nsadiag waits for: a call, a program, a connection. A peer that drips gains nothing by it."""
