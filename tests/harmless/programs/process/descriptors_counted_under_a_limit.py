# how: rank
# alone
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    print(len(files))
