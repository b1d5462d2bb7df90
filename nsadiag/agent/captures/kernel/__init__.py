"""Captures from the kernel: /proc, and what it says of sleeps, pipes, locks and memory limits."""
