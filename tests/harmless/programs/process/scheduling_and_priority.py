# how: rank
import os

print(
    os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
)
