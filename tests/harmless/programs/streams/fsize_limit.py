# how: rank
# alone
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
for _ in range(3000):
    print("x" * 60)
print("end")
