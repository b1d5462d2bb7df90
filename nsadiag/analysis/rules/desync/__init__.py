"""Ranks that issued different calls."""
