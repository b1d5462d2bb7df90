# how: rank
import atexit


@atexit.register
def fail():
    raise ValueError("at exit")


print("end")
