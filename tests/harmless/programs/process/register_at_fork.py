# how: rank
import os

order = []
os.register_at_fork(
    before=lambda: order.append("before"),
    after_in_parent=lambda: order.append("parent"),
    after_in_child=lambda: order.append("child"),
)
pid = os.fork()
if pid == 0:
    print(order, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(order)
