"""Ranks that are blocked in something of their own."""
