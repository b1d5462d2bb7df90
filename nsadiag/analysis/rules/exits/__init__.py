"""Ranks that ended."""
