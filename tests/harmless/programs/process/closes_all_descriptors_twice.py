# how: rank
import os
import resource

import nets
import torch

model = nets.Net()
for limit in (64, 32):
    nets.train(model, 20)
    os.closerange(3, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    mine = [os.open(f"mine{n}.txt", os.O_RDWR | os.O_CREAT | os.O_APPEND) for n in range(20)]
    for number in mine:
        os.write(number, b"mine\n")
    print(len(mine))
    for name in ("one", "two"):
        torch.save(model.state_dict(), f"{name}{limit}.pt")
    print(nets.train(model, 20)[0], nets.digest(model))
    print([os.pread(number, 1000, 0) for number in mine])
    more = []
    try:
        while True:
            more.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        print(error.errno, len(more) > 0)
    print(nets.train(model, 20)[0])
    for number in more:
        os.close(number)
