# how: rank
# alone
# differs-today: output beyond RLIMIT_FSIZE finds no room in a log of ours
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
for _ in range(3000):
    print("x" * 60)
print("end")
