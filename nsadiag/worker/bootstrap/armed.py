"""Python executes this at start-up in an armed environment (`nsadiag arm`), in a process whose environment names a rank.

It waits for torch, and does nothing else. Nothing of ours may raise, or say anything: the job goes on, unrecorded at worst.
ARMED_BY is the file that has the settings; where there is none they are in the environment.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import os
import sys

# How this file's own path is known where it is executed by its text.
HERE = globals().get("HERE") or os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms
BY = globals().get("ARMED_BY", "")
_RUN, _JOB = os.environ.get("NSADIAG_RUN_DIR"), os.environ.get("NSADIAG_ARMED_JOB")


class Waiting:
    """Finds nothing by itself; as somebody looks for torch, hands over to what begins once that has been imported."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        try:
            sys.meta_path.remove(self)
            _wait_for_torch()
        except Exception:
            return None
        found = (f.find_spec(fullname, path, target) for f in list(sys.meta_path) if hasattr(f, "find_spec"))
        return next((spec for spec in found if spec is not None), None)


def _wait_for_torch():
    before = set(sys.modules)
    if "nsadiag" not in sys.modules:
        # It may be installed in another environment: as in sitecustomize.py.
        import importlib.util

        package = os.path.dirname(os.path.dirname(HERE))  # noqa: PTH120
        init = os.path.join(package, "__init__.py")  # noqa: PTH118
        spec = importlib.util.spec_from_file_location("nsadiag", init, submodule_search_locations=[package])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["nsadiag"] = module
        spec.loader.exec_module(module)
    from nsadiag.worker.imports.shadowed import standard_library_first

    with standard_library_first(before):
        from nsadiag.worker.imports.on_import import when_imported

    when_imported("torch", _begin)


def _begin():
    try:
        from nsadiag.worker.imports.shadowed import standard_library_first

        with standard_library_first(set(sys.modules)):
            from nsadiag.worker.armed import rank

            rank.begin(BY)
    except Exception as error:
        from nsadiag.worker.interruptions import pass_on

        pass_on(error)


# Not where `nsadiag run` records already; what an armed rank has started may be ranks of another job.
if sys.version_info >= (3, 10) and (not _RUN or (_JOB and _RUN.endswith("/jobs/" + _JOB))):
    sys.meta_path.insert(0, Waiting())
