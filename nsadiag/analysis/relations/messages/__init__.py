"""Sends and their receives: which belong together, which never met, and the ranks that left the common course."""
