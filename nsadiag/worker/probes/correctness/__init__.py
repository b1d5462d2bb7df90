"""Sums and sketches that show whether ranks compute the same."""
