# how: rank
# alone
# differs-today: output beyond RLIMIT_FSIZE finds no room in a log of ours
import resource
import subprocess

resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
done = subprocess.run(
    [
        "bash",
        "-c",
        "for i in $(seq 3000); do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done; echo done",
    ]
)
print(done.returncode)
