# how: rank
import sys

print("\u2603 \U0001f600 \u202e reversed")
try:
    print("\udc80")
except UnicodeEncodeError as error:
    print(error)
print("\udc80", file=sys.stderr)
