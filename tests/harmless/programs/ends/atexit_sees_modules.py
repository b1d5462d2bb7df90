# how: rank
import atexit
import sys

atexit.register(lambda: print(sys.stdout is not None, "os" in sys.modules, sys.getrefcount is not None))
