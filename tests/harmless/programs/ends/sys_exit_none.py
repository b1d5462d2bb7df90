# how: rank
import sys

sys.exit(None)
