"""What would be: moves that open a set, drains, and policies side by side, as values. Pure: no I/O and no clock."""

from neuron_plugin.planning.cluster import ClusterNodes, NodeState, PlannedPod
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
    RULES,
    Drain,
    Move,
    MoveRules,
    Prospect,
    Relocation,
    Standing,
    after,
    best_node,
    cheapest_move,
    drain,
    how_many_more,
    prospects,
    still_possible,
)
from neuron_plugin.planning.policies import OURS, POLICIES, Policy
from neuron_plugin.planning.replay import BOUND, Board, Outcome, replay
