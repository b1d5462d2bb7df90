# how: rank
# slow
# alone
# stdin: for the child
import subprocess

print(subprocess.run(["cat"], capture_output=True, text=True).stdout)
