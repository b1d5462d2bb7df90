"""Conclusions from all cells of a matrix together."""
