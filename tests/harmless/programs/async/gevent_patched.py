# how: rank
# needs: gevent
# slow
from gevent import monkey

monkey.patch_all()
import gevent
import nets

print([job.get() for job in [gevent.spawn(lambda n=n: n * 2) for n in range(3)]])
print(nets.train(nets.Net())[0])
