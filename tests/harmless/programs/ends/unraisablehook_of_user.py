# how: rank
import sys

sys.unraisablehook = lambda told: print("unraisable", type(told.exc_value).__name__, flush=True)


class Bad:
    def __del__(self):
        raise OSError("x")


del (lambda bad: None).__defaults__
Bad()
