# how: rank
import sys

print(sys.stderr.line_buffering)
