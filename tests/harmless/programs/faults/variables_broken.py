# how: shell
# line: NSADIAG_RUN_DIR=${NSADIAG_RUN_DIR:+/dev/null/at/all} NSADIAG_SOCKET_DIR=${NSADIAG_SOCKET_DIR:+/dev/null} RANK=0 WORLD_SIZE=1 python train.py 2>&1 | grep -v '^nsadiag:'
import nets

print(nets.train(nets.Net(), 5)[0])
