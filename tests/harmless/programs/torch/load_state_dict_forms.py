# how: many
import nets
import torch

model = nets.Net()
_, optimizer = nets.train(model)
other = nets.Net()
print(other.load_state_dict(model.state_dict()), other.load_state_dict({}, strict=False))
state, calls = optimizer.state_dict(), []
optimizer.register_load_state_dict_pre_hook(lambda o, s: calls.append("pre"))
optimizer.register_load_state_dict_post_hook(lambda o: calls.append("post"))
optimizer.register_state_dict_post_hook(lambda o, s: calls.append("state"))
print(optimizer.load_state_dict(state), optimizer.state_dict()["param_groups"][0]["lr"], calls)
for bad in (
    lambda: other.load_state_dict({}),
    lambda: optimizer.load_state_dict({"param_groups": []}),
    lambda: optimizer.load_state_dict(),
):
    try:
        bad()
    except Exception as error:
        print(type(error).__name__, str(error)[:200])
