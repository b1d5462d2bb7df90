# how: rank
# alone
import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        with open("daemon.txt", "w") as file:
            file.write("daemon")
        os.rename("daemon.txt", "daemon.done")
        os._exit(0)
    os._exit(0)
os.wait()
while not os.path.exists("daemon.done"):
    time.sleep(0.01)
print(open("daemon.done").read())
