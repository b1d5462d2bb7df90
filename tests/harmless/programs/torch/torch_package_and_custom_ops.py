# how: many
import io

import nets
import seen
import torch
from torch import package


@torch.library.custom_op("harmless::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)
model = nets.Net()
nets.train(model, 5)
buffer = io.BytesIO()
with package.PackageExporter(buffer) as exporter:
    exporter.extern(["nets", "torch", "torch.**"])
    exporter.save_pickle("models", "model.pkl", model)
buffer.seek(0)
importer = package.PackageImporter(buffer)
again = importer.load_pickle("models", "model.pkl")
seen.say(
    type(again).__name__, nets.digest(again) == nets.digest(model), sorted(importer.file_structure().children)
)
x = torch.ones(3, requires_grad=True)
twice(x).sum().backward()
seen.say(x.grad, torch.library.opcheck(twice, (torch.ones(2),), test_utils="test_schema"))
seen.say(torch.compile(lambda t: twice(t) + 1, backend="eager", fullgraph=True)(torch.ones(2)))
