"""Whatever makes ranks differ at a line, without another line of the user's before it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from nsadiag.evidence.records import Origin
from nsadiag.evidence.rehearsal.reads import Read, chain_of, head_of
from nsadiag.source.model import name_of
from nsadiag.source.vocabulary import is_rank_call, is_rank_variable

TIME = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "now", "utcnow"})  # fmt: skip
FILES = frozenset({
    "open", "exists", "is_file", "isfile", "isdir", "is_dir", "glob", "iglob", "rglob", "iterdir", "listdir", "scandir", "walk", "stat",
    "getsize", "getmtime", "read_text", "read_bytes", "readline", "readlines", "access", "disk_usage", "mkdir", "makedirs", "unlink", "remove",
    "lexists", "touch",
})  # fmt: skip
RANDOM = frozenset({
    "rand", "randn", "randint", "randrange", "randperm", "shuffle", "choice", "choices", "sample", "uniform", "normal", "gauss", "bernoulli",
    "multinomial", "getrandbits", "token_hex", "token_bytes", "urandom", "uuid4", "permutation", "random", "standard_normal", "rand_like", "randn_like",
    "dropout", "integers",
})  # fmt: skip
ENVIRONMENT = frozenset({"getenv", "gethostname", "node", "uname", "cpu_count", "hash", "set", "frozenset", "getpid", "id", "getloadavg", "virtual_memory"})  # fmt: skip
# Calls and arguments that say where something is put: ranks have devices of their own by right, and what is there need not differ.
PLACES = frozenset({"device", "to", "cuda"})
PLACED = frozenset({"device", "device_id", "device_ids", "output_device", "map_location"})
DATA = frozenset({"next", "__next__", "item", "tolist", "any", "all", "isnan", "isfinite", "loads", "load"})


def contents(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all nodes below, without those that only say on which device a value is."""
    yield node
    if isinstance(node, ast.Call) and name_of(node) in PLACES:
        yield from contents(node.func)
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.keyword) and child.arg in PLACED):
            yield from contents(child)


def origin_of(node: ast.stmt) -> Origin:
    """By what the statement's own expressions call or name; "unknown" where nothing there makes ranks differ."""
    return _first(origin for part in head_of(node) for origin in _origins(part))


def origin_in(node: ast.expr, is_own: Callable[[str], bool]) -> Origin:
    """The same of an expression. `is_own`: whether a function of that name is one of the user's."""
    return _first(_origins(node, is_own))


def _first(origins: Iterable[Origin]) -> Origin:
    order: tuple[Origin, ...] = ("rank", "random state", "time", "file system", "environment", "data")
    found = {*origins}
    return next((each for each in order if each in found), "unknown")


def _origins(node: ast.AST, is_own: Callable[[str], bool] = lambda _: False) -> Iterator[Origin]:
    for each in contents(node):
        if isinstance(each, ast.Call):
            yield from _of_call(each) if not is_own(name_of(each)) else ()
        elif isinstance(each, ast.Subscript) and chain_of(each.value)[-1:] == ("environ",):
            yield _of_variable(each.slice)
        elif isinstance(each, ast.Set | ast.SetComp):
            yield "environment"  # its order goes by the salt of hashes


def _of_call(call: ast.Call) -> Iterator[Origin]:
    name: Read = chain_of(call.func)
    last = name[-1] if name else call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if is_rank_call(last):
        yield "rank"
    elif last == "getenv" or name[-2:] == ("environ", "get"):
        yield _of_variable(call.args[0]) if call.args else "environment"
    elif last in RANDOM or "random" in name[:-1]:
        yield "random state"
    elif last in TIME:
        yield "time"
    elif last in FILES:
        yield "file system"
    elif last in ENVIRONMENT:
        yield "environment"
    elif last in DATA:
        yield "data"


def _of_variable(node: ast.expr) -> Origin:
    named = isinstance(node, ast.Constant) and is_rank_variable(str(node.value))
    return "rank" if named else "environment"
