# how: rank
import copy
import io
import pickle

import nets
import seen
import torch


class Net(nets.Net):
    keeps = ()

    def forward(self, x):
        if self.keeps == "copy":
            twin = copy.deepcopy(self)
            twin.keeps = ()
            print("copy", nets.digest(twin), nets.of(twin(x)), sorted(vars(twin)))
        elif self.keeps == "pickle":
            data = pickle.dumps(self)
            twin = pickle.loads(data)
            twin.keeps = ()
            print("pickle", nets.digest(twin), b"nsadiag" in data, nets.of(twin(x)))
        return super().forward(x)


def save(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    found.keeps = ()
    print("saved", nets.digest(found), b"nsadiag" in file.getvalue(), found.a.weight._backward_hooks)


model = Net()
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    model.keeps = {3: "copy", 4: "pickle", 15: "copy", 17: "pickle"}.get(step, ())
    x = torch.full((4, 8), 0.1 * step)
    y = model(x)
    if step in (3, 5, 16):
        y.register_hook(lambda gradient: save(model))
    y.square().mean().backward()
    twin = copy.deepcopy(optimizer) if step in (4, 16) else None
    optimizer.step()
    optimizer.zero_grad()
    if twin is not None:
        twin.step()
        print(
            nets.of(*[p for group in twin.param_groups for p in group["params"]]),
            seen.size(pickle.dumps(twin)),
        )
print(nets.digest(model))
