# how: rank
# slow
import ctypes
import gc
import os
import threading
import time

import nets
import torch

ROUNDS = 60


class Cancelled(Exception):
    pass


kinds = (Cancelled, TimeoutError)
main = threading.main_thread().ident
begun = -1


def throw():
    # What libraries for time limits do where they may not use signals. Without locks: main may be thrown out of anything.
    for n in range(ROUNDS):
        while begun < n:
            time.sleep(0.0005)
        time.sleep(0.0001 * (n % 9))
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(kinds[n % 2]))


came = dict.fromkeys(kinds, 0)
model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.0)
torch.save({}, "x0.pt")
model(torch.ones(8)).sum().backward()
optimizer.step()
gc.disable()  # what is thrown in a finalizer is lost, plain too
thread = threading.Thread(target=throw)
thread.start()
for n in range(ROUNDS):
    try:
        begun = n
        while True:  # an exception that somebody kept is waited for without an end
            torch.save({}, f"x{n % 5}.pt")
            model(torch.ones(8)).sum().backward()
            optimizer.step()
    except kinds as error:
        came[type(error)] += 1
thread.join()
print(sorted(came.values()))
for k in range(5):
    if os.path.exists(f"x{k}.pt"):
        os.remove(f"x{k}.pt")
