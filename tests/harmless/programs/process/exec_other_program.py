# how: rank
# exits: 3
import os

print("python", flush=True)
os.execlp("bash", "bash", "-c", "echo bash; exit 3")
