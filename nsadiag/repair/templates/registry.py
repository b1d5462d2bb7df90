"""All templates, in the order in which they are tried at one line."""

from __future__ import annotations

from nsadiag.repair.templates.branches import (
    acknowledged,
    agree_on_condition,
    agree_on_flag,
    decorator_off,
    end_for_all,
    exception_agreed,
    flag_for_all,
    guard_later,
    hoist,
    one_side_for_all,
    said_always,
    without_short_cut,
)
from nsadiag.repair.templates.data import (
    epochs_set,
    length_agreed,
    loops_end_together,
    value_of_rank_0,
    value_traced,
)
from nsadiag.repair.templates.gradients import (
    bound_early,
    connected_zero,
    no_sync_borders,
    on_any_rank,
    takes_part,
    unused_parameters,
)
from nsadiag.repair.templates.order import (
    group_of_its_own,
    groups_by_all,
    one_worker,
    own_groups,
    sorted_iteration,
    timeout_given,
)
from nsadiag.repair.templates.template import Template
from nsadiag.repair.templates.transfers import (
    gathered_of_any_size,
    rounded_alike,
    sends_not_blocking,
    shape_sent_ahead,
    splits_exchanged,
    tags_left_out,
    waited_before_use,
)

TEMPLATES: tuple[Template, ...] = (
    unused_parameters.TEMPLATE,
    waited_before_use.TEMPLATE,
    bound_early.TEMPLATE,
    epochs_set.TEMPLATE,
    connected_zero.TEMPLATE,
    exception_agreed.TEMPLATE,
    end_for_all.TEMPLATE,
    acknowledged.TEMPLATE,
    timeout_given.TEMPLATE,
    groups_by_all.TEMPLATE,
    own_groups.TEMPLATE,
    splits_exchanged.TEMPLATE,
    rounded_alike.TEMPLATE,
    on_any_rank.TEMPLATE,
    flag_for_all.TEMPLATE,
    one_side_for_all.TEMPLATE,
    decorator_off.TEMPLATE,
    guard_later.TEMPLATE,
    hoist.TEMPLATE,
    sends_not_blocking.TEMPLATE,
    tags_left_out.TEMPLATE,
    said_always.TEMPLATE,
    gathered_of_any_size.TEMPLATE,
    sorted_iteration.TEMPLATE,
    one_worker.TEMPLATE,
    group_of_its_own.TEMPLATE,
    no_sync_borders.TEMPLATE,
    agree_on_condition.TEMPLATE,
    agree_on_flag.TEMPLATE,
    length_agreed.TEMPLATE,
    loops_end_together.TEMPLATE,
    takes_part.TEMPLATE,
    without_short_cut.TEMPLATE,
    value_of_rank_0.TEMPLATE,
    value_traced.TEMPLATE,
    shape_sent_ahead.TEMPLATE,
)
