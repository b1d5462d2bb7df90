"""The watch over a running job: its ranks and their progress, snapshots when they fall silent, and its end."""
