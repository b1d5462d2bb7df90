# how: rank
import pathlib

print(
    pathlib.Path("/proc/self/coredump_filter").read_text(),
    pathlib.Path("/proc/self/oom_score_adj").read_text(),
)
