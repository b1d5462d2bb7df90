# how: rank
# exits: 1
import sys

before = sys.excepthook


def mine(kind, error, trace):
    print("mine first", flush=True)
    before(kind, error, trace)


sys.excepthook = mine
raise KeyError("x")
