# how: rank
# slow
import os
import threading

import nets

model, codes = nets.Net(), []


def forked():
    pid = os.fork()
    if pid == 0:
        nets.train(nets.Net())
        os._exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


thread = threading.Thread(target=forked)
thread.start()
thread.join()
nets.train(model)
print(codes, nets.digest(model))
