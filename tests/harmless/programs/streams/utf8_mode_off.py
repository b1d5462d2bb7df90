# how: rank -X utf8=0
# env: LC_ALL=C PYTHONCOERCECLOCALE=0
import sys

print(sys.stdout.encoding, sys.stdout.errors, sys.flags.utf8_mode)
