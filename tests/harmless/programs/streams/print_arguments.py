# how: rank
import sys

print()
print(1, 2, sep="-", end="!\n")
print("e", file=sys.stderr)
for bad in ({"sep": 1}, {"end": 2}, {"nothing": 3}):
    try:
        print("x", **bad)
    except TypeError as error:
        print(error)
