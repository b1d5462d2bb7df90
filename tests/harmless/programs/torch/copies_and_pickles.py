# how: many
import copy
import io
import pickle

import nets
import seen
import torch

model = nets.Net()
_, optimizer = nets.train(model, 80)
file = io.BytesIO()
torch.save(model, file)
seen.say(
    seen.size(file.getvalue()),
    nets.digest(torch.load(io.BytesIO(file.getvalue()), weights_only=False)) == nets.digest(model),
)
twin, other = copy.deepcopy((model, optimizer))
seen.say(nets.train(twin, 3, other)[0], nets.digest(twin), nets.digest(model))
for thing in (
    model,
    optimizer,
    model.a.weight,
    model.a,
    optimizer.state_dict(),
    torch.nn.Linear,
    torch.Generator().get_state(),
    optimizer.step,
):
    try:
        data = pickle.dumps(thing)
        again = pickle.loads(data)
        seen.say(type(thing).__name__, seen.size(data), type(again).__name__)
    except Exception as error:
        seen.say(type(thing).__name__, type(error).__name__, error)
