# how: rank
import atexit


def one():
    print("one")


atexit.register(one)
atexit.register(print, "two")
atexit.unregister(one)
print(atexit._ncallbacks() > 0)
