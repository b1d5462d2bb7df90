# how: shell
# unordered
# line: for n in 1 2 3; do RANK=0 WORLD_SIZE=1 python train.py & done; wait
import nets

print(nets.train(nets.Net(), 5)[0])
