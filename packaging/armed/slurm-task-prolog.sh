#!/bin/sh
# TaskProlog of slurm.conf: what it prints is the environment of each task. Made once, where nsadiag is installed:
#   /opt/nsadiag/bin/nsadiag arm --variables --out /scratch/stalls > /etc/nsadiag/armed.sh
# A job that is to be left alone is submitted with NSADIAG_ARMED=0.
file=${NSADIAG_ARMED_FILE:-/etc/nsadiag/armed.sh}
[ "$NSADIAG_ARMED" = 0 ] && exit 0
[ -r "$file" ] || exit 0
. "$file"
for name in NSADIAG_ARMED NSADIAG_ARMED_OUT NSADIAG_ARMED_METRICS PYTHONPATH; do
    eval "value=\$$name"
    [ -n "$value" ] && echo "export $name=$value"
done
