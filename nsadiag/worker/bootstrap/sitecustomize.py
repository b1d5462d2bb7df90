"""Python runs this at start-up because `nsadiag run` put this directory first on PYTHONPATH.

It starts the worker runtime where the run asks for one, then hands over to the sitecustomize that would
have run without us. Nothing here may raise: the job goes on, with a gap in the evidence at worst.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms at start-up


def _start_worker() -> None:
    # nsadiag may be installed in another environment than the job's: load just this package by its path,
    # and leave sys.path alone, so that no other package of that environment leaks into the job.
    package = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
    if "nsadiag" not in sys.modules:
        init = os.path.join(package, "__init__.py")  # noqa: PTH118
        spec = importlib.util.spec_from_file_location("nsadiag", init, submodule_search_locations=[package])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["nsadiag"] = module
        spec.loader.exec_module(module)
    from nsadiag.worker import runtime

    runtime.boot()


def _run_the_users_own() -> None:
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("NSADIAG_RUN_DIR"):
    try:
        _start_worker()
    except Exception as error:
        print(f"nsadiag: no probes in this process: {error!r}", file=sys.stderr)
_run_the_users_own()
