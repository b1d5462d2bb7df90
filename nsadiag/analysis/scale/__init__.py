"""Thousands of ranks: those that matter, few of each kind."""
