# how: many
import nets
import torch

x = torch.randn(8, 8)
for name in (
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Adafactor",
):
    torch.manual_seed(1)
    model = nets.Net()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    print(
        name,
        nets.train(model, 6, optimizer, x)[0],
        nets.digest(model),
        nets.of(*[v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]),
    )
