# how: rank
# slow
# alone
import threading


def fail():
    raise ValueError("in a thread")


thread = threading.Thread(target=fail, name="worker-7")
thread.start()
thread.join()
print("main goes on")
