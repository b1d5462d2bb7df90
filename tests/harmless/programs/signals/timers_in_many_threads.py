# how: rank
import contextlib
import itertools
import signal
import threading
import time

import nets
import torch

count, models = itertools.count(), [nets.Net() for _ in range(3)]
inside, done = threading.Lock(), threading.Event()
x = torch.ones(8, 8)


def handler(number, frame):
    """In the main thread, whichever thread the signal came to."""
    if inside.acquire(blocking=False):
        try:
            with torch.no_grad():
                models[0](x)
            torch.save({}, f"h{next(count) % 2}.pt")
        finally:
            inside.release()


handler(0, None)
for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGUSR1):
    signal.signal(number, handler)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
signal.setitimer(signal.ITIMER_PROF, 0.005, 0.005)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.007, 0.007)
results = {}


def trains(name, model):
    results[name] = nets.train(model, 80, x=x)[0]


def sends():
    while not done.is_set():
        for thread in [t for t in threading.enumerate() if t.ident]:
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
        time.sleep(0.002)


sender = threading.Thread(target=sends)
workers = [threading.Thread(target=trains, args=(n, m)) for n, m in enumerate(models[1:])]
for thread in (sender, *workers):
    thread.start()
main = nets.Net()
results["main"] = nets.train(main, 80, x=x)[0]
for thread in workers:
    thread.join()
done.set()
sender.join()
for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF, signal.ITIMER_VIRTUAL):
    signal.setitimer(timer, 0)
print(sorted(results.items(), key=str), nets.digest(main, *models), next(count) > 1)
