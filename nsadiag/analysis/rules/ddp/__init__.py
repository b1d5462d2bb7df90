"""Misuse that DDP's reducer shows."""
