# how: rank
import resource
import threading

resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
threading.stack_size(1 << 18)
done = []
thread = threading.Thread(target=done.append, args=(1,))
thread.start()
thread.join()
print(done)
