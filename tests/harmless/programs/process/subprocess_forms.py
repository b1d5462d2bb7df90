# how: rank
import os
import subprocess

print(subprocess.check_output(["echo", "a"]), subprocess.call("exit 3", shell=True), os.system("exit 2") >> 8)
print(subprocess.run(["bash", "-c", "ls /proc/self/fd | wc -l"], capture_output=True, text=True).stdout)
print(
    subprocess.run(
        ["bash", "-c", "ls /proc/self/fd | wc -l"], capture_output=True, text=True, close_fds=False
    ).stdout
)
print(os.spawnlp(os.P_WAIT, "true", "true"), os.popen("echo popen").read())
