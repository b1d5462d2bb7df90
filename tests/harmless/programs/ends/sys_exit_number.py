# how: rank
# exits: 7
# alone
import sys

sys.exit(7)
