"""Secrets: their published shapes, and their masking in whatever is written down."""
