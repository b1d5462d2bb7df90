"""The door: files of a run directory are opened, and their values checked, here alone."""
