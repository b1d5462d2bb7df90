# how: shell
# by-design: variables
# line: mkdir -p one/space/models two/space/train "three dir"; cp nets.py seen.py two; echo 'import nets; class_of = nets.Net' > one/space/models/net.py; cp train.py two/space/train/run.py; cd "three dir"; RANK=0 WORLD_SIZE=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}../one:../two" python -m space.train.run a; echo $?; cd ../two/space; RANK=0 WORLD_SIZE=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}../../one:.." python -c 'import runpy; runpy.run_module("space.train.run", run_name="__main__", alter_sys=True)'
import importlib
import os
import sys

import nets
import space
import torch

models = importlib.import_module("space.models.net")
model = models.class_of()
loss, _ = nets.train(model, 30)
torch.save(model.state_dict(), "x.pt")
print(loss, nets.digest(model), __name__, __spec__ and __spec__.name, __package__)
print([os.path.basename(os.path.dirname(p)) for p in space.__path__], space.__file__, space.__spec__.origin)
print(
    [p for p in sys.path if "nsadiag" not in p and "site-packages" not in p and "lib/python" not in p],
    sys.argv[1:],
)
try:
    from . import nothing
except ImportError as error:
    print(error)
