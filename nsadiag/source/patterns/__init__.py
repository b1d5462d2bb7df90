"""Patterns of source that single rules and candidates look for, one a file."""
