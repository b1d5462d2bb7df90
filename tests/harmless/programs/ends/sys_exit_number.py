# how: rank
# alone
import sys

sys.exit(7)
