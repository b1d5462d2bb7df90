"""Groups whose members each rank names for itself are created by all ranks, one after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import name_of

NAME = "own_group_of_all"
HELPER = f'''def {NAME}(members):
    """This rank's group, after all ranks have created the groups of all; None where it names no members."""
    import torch.distributed as dist

    named = [None] * dist.get_world_size()
    dist.all_gather_object(named, sorted(members) if members else None)
    own = None
    for each in sorted(list(each) for each in {{tuple(each) for each in named if each}}):
        group = dist.new_group(each)
        if members and each == sorted(members):
            own = group
    return own
'''


def propose(module: Module) -> Iterator[Proposal]:
    """At calls of new_group with members that depend on the rank; the condition above one decides whether it has any."""
    if module.binds(NAME):
        return
    for call in module.around(ast.Call):
        assert isinstance(call, ast.Call)
        if name_of(call) != "new_group" or len(call.args) != 1 or call.keywords:
            continue
        if module.provenance(call.args[0]) == "uniform":
            continue
        members = module.source(call.args[0])
        statement = module.statement_of(call)
        branch = module.parents.get(statement)
        what = f"the groups of line {call.lineno} are created by all ranks"
        if isinstance(branch, ast.If) and not branch.orelse:
            rows = module.replaced(call, "own_group").splitlines(keepends=True)
            made = f"own_group = {NAME}({members} if {module.source(branch.test)} else None)"
            rows.insert(branch.lineno - 1, f"{' ' * branch.col_offset}{made}\n")
            yield Proposal(what=what, text=with_helper("".join(rows), HELPER), line=call.lineno)
        else:
            text = module.replaced(call, f"{NAME}({members})")
            yield Proposal(what=what, text=with_helper(text, HELPER), line=call.lineno)


EXAMPLE = Example(
    line=6,
    before="""import torch.distributed as dist


def pair(rank, world):
    if (rank ^ 1) < world:
        return dist.new_group([rank, rank ^ 1])
    return None
""",
    after=f"""import torch.distributed as dist


{HELPER}

def pair(rank, world):
    own_group = {NAME}([rank, rank ^ 1] if (rank ^ 1) < world else None)
    if (rank ^ 1) < world:
        return own_group
    return None
""",
)
TEMPLATE = Template(name="own groups", propose=propose, example=EXAMPLE)
