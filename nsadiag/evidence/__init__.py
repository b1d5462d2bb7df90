"""The shapes on disk: what ranks and agents write, and what analysis reads."""
