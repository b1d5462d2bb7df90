"""From evidence on disk to a verdict; no torch, so that any laptop can do it."""
