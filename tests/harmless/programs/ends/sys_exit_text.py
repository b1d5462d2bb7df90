# how: rank
# exits: 1
# alone
import sys

sys.exit("no such dataset")
