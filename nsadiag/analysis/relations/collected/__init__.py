"""Ranks beside each other in what other tools collected."""
