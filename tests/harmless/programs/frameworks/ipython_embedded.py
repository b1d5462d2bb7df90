# how: shell
# needs: IPython
# slow
# line: RANK=0 WORLD_SIZE=1 python -m IPython --no-banner --colors=NoColor -c 'import torch; print(torch.ones(1)); 1/0' 2>&1 | tail -5
