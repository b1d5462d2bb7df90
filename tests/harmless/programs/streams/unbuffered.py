# how: rank -u
# slow
# alone
import sys

print(sys.stdout.write_through, sys.stdout.line_buffering)
sys.stdout.write("a")
sys.stdout.write("b\n")
