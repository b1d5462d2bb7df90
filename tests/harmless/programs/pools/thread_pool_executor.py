# how: rank
import concurrent.futures as futures

import nets

with futures.ThreadPoolExecutor(3) as pool:
    print([f.result() for f in [pool.submit(pow, 2, n) for n in range(5)]])
    try:
        pool.submit(lambda: 1 / 0).result()
    except ZeroDivisionError:
        print("raised here")
print(nets.train(nets.Net())[0])
