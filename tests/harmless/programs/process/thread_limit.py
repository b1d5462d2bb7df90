# how: rank
import resource
import threading

resource.setrlimit(resource.RLIMIT_NPROC, (4096, 4096))
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(300)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(done))
