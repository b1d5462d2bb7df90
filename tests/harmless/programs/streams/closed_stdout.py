# how: rank
# slow
# alone
import sys

sys.stdout.close()
try:
    print("lost")
except ValueError as error:
    print(error, file=sys.stderr)
