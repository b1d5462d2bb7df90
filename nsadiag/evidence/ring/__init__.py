"""The ring of events of a rank (`blackbox.bin`): written in the rank, read by anyone."""
