# how: rank
# exits: 1
import sys

sys.exit({"reason": 3})
