# how: many
import sys

import nets

model = nets.Net()
nets.train(model, 3)
monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
if monitoring is not None:
    codes = set()
    monitoring.use_tool_id(monitoring.PROFILER_ID, "mine")
    monitoring.register_callback(
        monitoring.PROFILER_ID, monitoring.events.PY_START, lambda code, at: codes.add(code.co_qualname)
    )
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    nets.train(model, 3)
    monitoring.set_events(monitoring.PROFILER_ID, 0)
    monitoring.free_tool_id(monitoring.PROFILER_ID)
    print("Net.forward" in codes, [monitoring.get_tool(n) for n in range(6)])
print(nets.train(model)[0])
