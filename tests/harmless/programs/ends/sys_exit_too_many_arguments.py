# how: rank
import sys

try:
    sys.exit(1, 2)
except TypeError as error:
    print(error)
