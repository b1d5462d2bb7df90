"""The messages and documents of a rehearsal."""
