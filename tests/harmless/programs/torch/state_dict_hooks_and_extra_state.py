# how: many
import nets
import torch

calls = []


class Extra(nets.Net):
    def get_extra_state(self):
        return {"extra": 1}

    def set_extra_state(self, state):
        calls.append(state)


model = Extra()
model.register_state_dict_pre_hook(lambda m, p, k: calls.append("pre"))
model.register_state_dict_post_hook(lambda m, s, p, l: calls.append(sorted(s)))
model.register_load_state_dict_pre_hook(lambda *a: calls.append("load pre"))
model.register_load_state_dict_post_hook(lambda m, k: calls.append("load post"))
nets.train(model, 40)
model.load_state_dict(model.state_dict())
print(calls)
