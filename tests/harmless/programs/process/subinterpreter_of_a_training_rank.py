# how: rank
# exits: 1
import nets

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

model = nets.Net()
print(nets.train(model)[0])
one = interpreters.create()
getattr(interpreters, "exec", getattr(interpreters, "run_string", None))(
    one, "import json; print(json.dumps([1]))"
)
interpreters.destroy(one)
print(nets.train(model)[0], nets.digest(model))
