# how: shell
# line: for how in forward tensor accumulated backward step comm worker thread; do echo "== $how"; RANK=0 WORLD_SIZE=1 python train.py $how; echo "ended with $?"; done
# slow
import sys
import threading

import nets
import torch

how = sys.argv[1]
model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
nets.train(model, 5, optimizer)


def leaves(*_):
    if how == "thread":
        sys.exit("in a thread")
    sys.exit(f"left by {how}")


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if how == "worker":
            sys.exit(5)
        return torch.ones(8)


if how == "forward":
    model.b.register_forward_hook(leaves)
elif how == "tensor":
    model.a.weight.register_hook(leaves)
elif how == "accumulated":
    model.a.weight.register_post_accumulate_grad_hook(leaves)
elif how == "backward":
    model.b.register_full_backward_hook(leaves)
elif how == "step":
    optimizer.register_step_post_hook(leaves)
elif how == "thread":
    thread = threading.Thread(target=leaves)
    thread.start()
    thread.join()
try:
    for x in torch.utils.data.DataLoader(Items(), 2, num_workers=1 if how == "worker" else 0):
        nets.train(model, 1, optimizer, x=x)
except RuntimeError as error:
    print(str(error)[:28])
finally:
    print("finally", nets.digest(model))
