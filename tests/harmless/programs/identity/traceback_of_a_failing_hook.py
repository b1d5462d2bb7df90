# how: many
import traceback

import nets
import seen

for register in (
    lambda m, f: m.register_forward_hook(f),
    lambda m, f: m.register_forward_pre_hook(f),
    lambda m, f: m.register_full_backward_hook(f),
    lambda m, f: m.a.weight.register_hook(f),
    lambda m, f: m.a.weight.register_post_accumulate_grad_hook(f),
):
    model = nets.Net()
    register(model, lambda *_: 1 / 0)
    try:
        nets.train(model, 1)
    except ZeroDivisionError:
        seen.say(seen.plain(traceback.format_exc()))
