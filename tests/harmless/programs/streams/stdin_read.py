# how: rank
# alone
# stdin: given on stdin
import sys

print("read", sys.stdin.read())
