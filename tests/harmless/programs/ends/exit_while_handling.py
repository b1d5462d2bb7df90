# how: rank
import sys

try:
    int("x")
except ValueError:
    sys.exit(8)
