# how: rank
# alone
import sys

sys.stdout.write("no newline")
