# how: many
import io
import pathlib
import pickle

import nets
import torch

model = nets.Net()
state = model.state_dict()
torch.save(state, "a.pt")
torch.save(obj=state, f=pathlib.Path("b.pt"))
torch.save(state, "c.pt", pickle, 2, _use_new_zipfile_serialization=False)
with open("d.pt", "wb") as file:
    torch.save(state, file)
buffer = io.BytesIO()
torch.save(state, buffer)
buffer.seek(0)
for where in ("a.pt", pathlib.Path("b.pt"), "c.pt", "d.pt", buffer):
    print(sorted(torch.load(where, map_location="cpu", weights_only=True)))
pathlib.Path("c.pt").unlink()  # the old format has addresses in it
print(torch.load("a.pt", mmap=True)["a.weight"].shape)
for bad in (
    lambda: torch.save(state),
    lambda: torch.save(state, "/nowhere/x"),
    lambda: torch.load(),
    lambda: torch.load("nowhere"),
    lambda: torch.load("a.pt", nothing=1),
):
    try:
        bad()
    except Exception as error:
        print(type(error).__name__, str(error)[:150])
