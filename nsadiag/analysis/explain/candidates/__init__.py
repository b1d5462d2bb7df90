"""Conditions that may explain a divergence, one kind a file."""
