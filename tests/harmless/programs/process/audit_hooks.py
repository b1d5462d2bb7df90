# how: rank
import sys

seen = []
sys.addaudithook(
    lambda event, args: (
        seen.append(event) if event in ("open", "os.system", "subprocess.Popen", "socket.connect") else None
    )
)
print(len(seen))
open("/dev/null").close()
print(seen)
