"""Which node and set is best, and what would be: moves that open a set, drains, replays. Pure: no I/O and no clock."""

from neuron_plugin.planning.choice import PACK, Answers, Choices, Feasibility, cost_on, judge, place_together
from neuron_plugin.planning.demand import (
    MIXES,
    Arrival,
    DemandError,
    Lifetimes,
    arrivals,
    parse_shape,
    read_trace,
    shape_text,
)
from neuron_plugin.planning.moves import (
    PREEMPTION,
    RULES,
    Cluster,
    Drain,
    Move,
    MoveRules,
    Prospect,
    Relocation,
    Standing,
    after,
    cheapest_move,
    drain,
    how_many_more,
    prospects,
    still_possible,
    why_not_judged,
)
from neuron_plugin.planning.replay import Board, Outcome, Site, replay, simulated_node, simulated_pod
