"""Batches and checkpoints: what is read and written."""
