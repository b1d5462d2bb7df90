"""The messages and documents of a rehearsal. Every process of a job imports this: what only ranks need is in `calls`."""

SOCKET = "NSADIAG_REHEARSAL"  # variable with the path of the coordinator's socket
