"""Ranks that made different calls."""
