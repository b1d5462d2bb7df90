# how: shell
# line: NSADIAG_RUN_DIR=${NSADIAG_RUN_DIR:+/nowhere/at/all} NSADIAG_SOCKET_DIR=${NSADIAG_SOCKET_DIR:+/nowhere} RANK=0 WORLD_SIZE=1 python train.py 2>&1 | grep -v '^nsadiag:'
import nets

print(nets.train(nets.Net(), 5)[0])
