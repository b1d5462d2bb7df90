# how: many
import tracemalloc

import nets
import seen

seen.say(tracemalloc.is_tracing())
tracemalloc.start()
nets.train(nets.Net())
files = {trace.traceback[0].filename for trace in tracemalloc.take_snapshot().traces}
tracemalloc.stop()
seen.say(sorted(f.rpartition("/")[2] for f in files if f.endswith(("nets.py", "sgd.py"))))
