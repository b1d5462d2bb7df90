# how: rank
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

with open("generated_net.py", "w") as file:
    file.write("import nets\nclass Made(nets.Net):\n    scale = 1\n\ndef build():\n    return Made()\n")


class Doubles(ast.NodeTransformer):
    """Rewrites constants while a module is imported, as beartype, jaxtyping and typeguard rewrite functions."""

    def visit_Constant(self, node):
        return ast.copy_location(ast.Constant(2 if node.value == 1 else node.value), node)


class Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        tree = ast.fix_missing_locations(Doubles().visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True)

    def cache_from_source(self, path):
        raise NotImplementedError


class Finder(importlib.abc.MetaPathFinder):
    asked = []

    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
        if name == "generated_net":
            return importlib.util.spec_from_file_location(
                name, "generated_net.py", loader=Loader(name, "generated_net.py")
            )
        return None


class Touchy(types.ModuleType):
    """A module that minds being asked, as some lazy ones do."""

    def __getattribute__(self, name):
        if name in ("__name__", "__spec__", "__file__", "__path__", "__loader__"):
            return super().__getattribute__(name)
        asked.append(name)
        raise RuntimeError(f"not {name}")


asked = []
sys.modules["touchy"] = Touchy("touchy")
sys.modules["none_of_it"] = None
sys.modules["no_module"] = object()
sys.meta_path.insert(0, Finder())
import generated_net
import nets
import torch

asked.clear()
model = generated_net.build()
loss, optimizer = nets.train(model, 40)
torch.save(model.state_dict(), "x.pt")
print(loss, nets.digest(model), model.scale, asked)
print([name for name in Finder.asked if name.startswith(("nets", "generated"))])
print(
    os.path.exists("__pycache__/generated_net.cpython-311.pyc"), generated_net.__loader__.__class__.__name__
)
Finder.asked.clear()
nets.train(model, 60, optimizer)
print(Finder.asked)
