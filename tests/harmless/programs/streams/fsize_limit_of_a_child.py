# how: rank
# alone
# by-design: streams
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
