"""Which node and set is best, and what would be: moves that open a set, drains. Pure: no I/O and no clock."""

from neuron_plugin.planning.choice import PACK, Choices, place_together
from neuron_plugin.planning.moves import (
    PREEMPTION,
    RULES,
    SECONDS_AN_HOUR,
    Cluster,
    Move,
    MoveRules,
    Prospect,
    Relocation,
    Standing,
    after,
    cheapest_move,
    drain,
    how_many_more,
    lowest_first,
    prospects,
    still_possible,
    why_not_judged,
)
from neuron_plugin.planning.shapes import DemandError, parse_shape, shape_text
