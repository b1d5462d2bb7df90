# how: python
# stdin: 1 2 3
import sys

print([line.split() for line in sys.stdin], sys.stdin.name, sys.stdin.mode)
