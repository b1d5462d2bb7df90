# how: shell
# line: RANK=0 WORLD_SIZE=many python -c 'import torch; torch.nn.Linear(1, 1)(torch.ones(1)); print("ran")'
