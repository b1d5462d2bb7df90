"""Python runs this at start-up because `nsadiag run` put this directory first on PYTHONPATH.

It starts the recording where the run asks for one, then hands over to the sitecustomize that would
have run without us. Nothing of ours may raise: the job goes on, with a gap in the evidence at worst.

Every Python that a job calls reads this file, the helpers written for Python 2.7 too, so it is written in what they
all understand: without annotations, and without keywords of later versions. Only those that can be ranks go further.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms at start-up
_OLDEST = (3, 10)


def _start_worker():
    # nsadiag may be installed in another environment than the job's: load just this package by its path,
    # and leave sys.path alone, so that no other package of that environment leaks into the job.
    before = set(sys.modules)
    import importlib.util

    package = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
    if "nsadiag" not in sys.modules:
        init = os.path.join(package, "__init__.py")  # noqa: PTH118
        spec = importlib.util.spec_from_file_location("nsadiag", init, submodule_search_locations=[package])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["nsadiag"] = module
        spec.loader.exec_module(module)
    from nsadiag.worker.imports.shadowed import standard_library_first

    with standard_library_first(before, at_start=True):
        from nsadiag.worker import startup

        startup.boot()


def _arm():
    # As the line in the .pth file of an armed environment does it (commands/armed/environments.py).
    here = os.environ
    if (
        ("RANK" in here and "WORLD_SIZE" in here)
        or "OMPI_COMM_WORLD_RANK" in here
        or "PMI_RANK" in here
        or ("SLURM_PROCID" in here and here.get("SLURM_STEP_NUM_TASKS", "1") != "1")
    ):
        with open(os.path.join(_HERE, "armed.py")) as file:  # noqa: PTH118, PTH123
            code = compile(file.read(), file.name, "exec")
        exec(code, {"__name__": "nsadiag_armed", "HERE": _HERE})


def _run_the_users_own():
    """As if we had never been here: not on the path, nor among the modules. Raises ImportError where there is none."""
    ours = [entry for entry in sys.path if os.path.abspath(entry or ".") == _HERE]  # noqa: PTH100
    for entry in ours:
        at = sys.path.index(entry)
        sys.path[at : at + 1] = _what_it_stands_for(entry)
    if sys.version_info < (3,):  # noqa: UP036
        imp = __import__("imp")  # gone since Python 3.12

        sys.modules["sitecustomize"] = imp.load_module("sitecustomize", *imp.find_module("sitecustomize"))
        return
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        # What `site` passes over in silence, and the import system forgets.
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _what_it_stands_for(entry):
    """The directories that would be on the path in its place.

    Where PYTHONPATH was not set, a script that says `$PYTHONPATH:more` meant an empty entry and `more`: Python takes
    the empty one for the working directory.
    """
    if os.environ.get("PYTHONPATH") == entry or not os.environ.get("NSADIAG_NO_PYTHONPATH"):
        return []
    try:
        directory = os.getcwd()  # noqa: PTH109
    except OSError:
        return []
    return [] if directory in sys.path else [directory]


if os.environ.get("NSADIAG_RUN_DIR") and sys.version_info >= _OLDEST:
    try:
        _start_worker()
    except Exception as error:
        # Standard error may be what failed.
        try:  # noqa: SIM105 - contextlib has no `suppress` in the oldest
            sys.stderr.write("nsadiag: no probes in this process: %r\n" % (error,))  # noqa: UP031
        except Exception:
            pass
elif os.environ.get("NSADIAG_ARMED") == "1" and sys.version_info >= _OLDEST:
    try:  # noqa: SIM105 - as above
        _arm()
    except Exception:
        pass
_run_the_users_own()
