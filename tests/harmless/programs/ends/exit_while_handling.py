# how: rank
# exits: 8
import sys

try:
    int("x")
except ValueError:
    sys.exit(8)
