# how: rank
import json
import os
import tempfile
from unittest import mock

import nets
import torch


class Other(torch.nn.Module):
    def forward(self, x):
        return x


model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for n, name in enumerate(
    (
        "json.dumps",
        "json.loads",
        "os.getpid",
        "os.stat",
        "os.rename",
        "tempfile.mkstemp",
        "pathlib.Path.exists",
        "pathlib.Path.mkdir",
        "threading.get_ident",
        "threading.current_thread",
        "os.fspath",
        "os.path.join",
        "builtins.open",
        "os.getcwd",
        "os.listdir",
        "os.urandom",
        "hashlib.sha256",
        "logging.getLogger",
    )
):
    with mock.patch(name, side_effect=RuntimeError("mocked")):
        kind = type(f"Kind{n}", (Other,), {})
        net = torch.nn.Sequential(kind(), nets.Net())
        own = torch.optim.Adam(net.parameters())
        loss = net(torch.ones(8)).sum()
        loss.backward()
        own.step()
        nets.train(model, 1, optimizer)
    print(name)
try:
    torch.load("nowhere.pt")
except FileNotFoundError as error:
    print(error)
print(nets.digest(model))
