"""Attention to bands of keys: the compressed branch and the window."""
