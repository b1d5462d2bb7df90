# how: rank
# unordered
import threading

import nets


def fail(n):
    nets.torch.save({}, f"t{n % 5}.pt")
    raise ValueError("all alike")


threads = [threading.Thread(target=fail, args=(n,), name="same") for n in range(60)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(nets.train(nets.Net())[0])
