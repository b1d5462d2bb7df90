"""Captures of Python: stacks of a rank and its children, the interpreter lock, event loops, gradients."""
