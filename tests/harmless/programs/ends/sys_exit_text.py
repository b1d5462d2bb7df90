# how: rank
# alone
import sys

sys.exit("no such dataset")
