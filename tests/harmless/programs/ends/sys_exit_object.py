# how: rank
import sys

sys.exit({"reason": 3})
