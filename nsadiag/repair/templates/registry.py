"""All templates, in the order in which they are tried."""

from __future__ import annotations

from nsadiag.repair.templates import (
    agree_on_condition,
    groups_by_all,
    hoist,
    loops_end_together,
    sorted_iteration,
    unused_parameters,
)
from nsadiag.repair.templates.template import Template

TEMPLATES: tuple[Template, ...] = (
    unused_parameters.TEMPLATE,
    sorted_iteration.TEMPLATE,
    groups_by_all.TEMPLATE,
    hoist.TEMPLATE,
    agree_on_condition.TEMPLATE,
    loops_end_together.TEMPLATE,
)
