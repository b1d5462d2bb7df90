# how: ranks
import nets
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from seen import say
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict

R = nets.init()
model = torch.nn.parallel.DistributedDataParallel(nets.Net())
_, optimizer = nets.train(model, 3, x=torch.ones(4, 8))
told = checkpoint.save({"m": model.module.state_dict()}, checkpoint_id="ck")
say(type(told).__name__, sorted(told.state_dict_metadata))
fresh = nets.Net()
state = {"m": fresh.state_dict()}
say(
    checkpoint.load(state, checkpoint_id="ck"),
    checkpoint.load(state_dict=state, storage_reader=checkpoint.FileSystemReader("ck")),
)
fresh.load_state_dict(state["m"])
say(
    nets.digest(fresh) == nets.digest(model.module),
    sorted(get_model_state_dict(model)),
    len(get_state_dict(model, optimizer)),
)
future = checkpoint.async_save({"m": model.module.state_dict()}, checkpoint_id="ck2")
say(type(future).__name__, type(future.result()).__name__)
try:
    checkpoint.load({"x": torch.ones(1)}, checkpoint_id="nowhere")
except BaseException as error:
    say(type(error).__name__)
dist.barrier()
del model
if R == 0:
    __import__("shutil").rmtree("ck")
    __import__("shutil").rmtree("ck2")
