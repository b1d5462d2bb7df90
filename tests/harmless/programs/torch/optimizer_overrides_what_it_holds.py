# how: many
import copy
import pickle

import nets
import seen
import torch

asked = []


class Mine(torch.optim.SGD):
    @property
    def param_groups(self):
        asked.append("param_groups")
        return self.__dict__["groups"]

    @param_groups.setter
    def param_groups(self, value):
        self.__dict__["groups"] = value

    def __eq__(self, other):
        asked.append("eq")
        return self is other

    def __hash__(self):
        asked.append("hash")
        return id(self)

    def __len__(self):
        asked.append("len")
        return 0


model = nets.Net()
optimizer = Mine(model.parameters(), 0.1)
plain = torch.optim.Adam(model.parameters())
for n in range(70):
    optimizer.zero_grad()
    model(torch.ones(8)).sum().backward()
    asked.clear()
    optimizer.step()
    if n in (0, 3, 69):
        seen.say(n, sorted({name for name in asked if name != "param_groups"}))
for _ in range(5):
    plain.step()
same = copy.deepcopy(plain)
seen.say(
    type(same).__name__,
    sorted(vars(same)),
    b"nsadiag" in pickle.dumps(plain),
    b"nsadiag" in pickle.dumps(same),
)
seen.say(len(same._optimizer_step_pre_hooks), nets.digest(model))
