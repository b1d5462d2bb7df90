"""Python runs this at start-up because `nsadiag run` put this directory first on PYTHONPATH.

It starts the recording where the run asks for one, then hands over to the sitecustomize that would
have run without us. Nothing of ours may raise: the job goes on, with a gap in the evidence at worst.
"""

import contextlib
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
    from nsadiag.worker import startup

    startup.boot()


def _run_the_users_own() -> None:
    """As if we had never been here: not on the path, nor among the modules. Raises ImportError where there is none."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        # What `site` passes over in silence, and the import system forgets.
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("NSADIAG_RUN_DIR"):
    try:
        _start_worker()
    except Exception as error:
        # Standard error may be what failed.
        with contextlib.suppress(Exception):
            print(f"nsadiag: no probes in this process: {error!r}", file=sys.stderr)
_run_the_users_own()
