# how: rank
import threading
import time


def late():
    time.sleep(0.3)
    print("late", flush=True)


threading.Thread(target=late).start()
print("main ends", flush=True)
