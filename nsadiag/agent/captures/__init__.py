"""Captures of a job from outside, each in a file of its own; `capturing.py` takes them."""
