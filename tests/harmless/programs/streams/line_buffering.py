# how: rank
# alone
# by-design: line-buffering
import sys

print(sys.stdout.line_buffering)
