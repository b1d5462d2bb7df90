"""Experiments that choose the next job by what the last one showed: trials, bisection, shrinking."""
