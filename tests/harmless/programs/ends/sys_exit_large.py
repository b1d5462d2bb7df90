# how: rank
import sys

sys.exit(-1)
