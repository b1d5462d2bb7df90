# how: many
import pickle
import sys
from collections import OrderedDict

import nets
from torch.utils.hooks import RemovableHandle

model = nets.Net()
with model.register_forward_hook(print) as handle:
    print(
        type(handle) is RemovableHandle,
        handle.id in model._forward_hooks,
        sorted(vars(handle)),
        sys.getrefcount(handle),
    )
print(
    len(model._forward_hooks),
    len(pickle.dumps(handle)) > 0,
    RemovableHandle(OrderedDict()).id - RemovableHandle(OrderedDict()).id,
)
