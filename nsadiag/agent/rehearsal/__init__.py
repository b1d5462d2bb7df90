"""The coordinator of a rehearsal, and the watch over it."""
