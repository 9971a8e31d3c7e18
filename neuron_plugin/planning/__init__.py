"""Judge waiting pods: where they fit, why they wait, which pods would have to go. Values only: no I/O, no clock."""

from neuron_plugin.planning.choice import Choices
from neuron_plugin.planning.judgement import Judgement, Standing, judge_all
from neuron_plugin.planning.scene import Cluster, Scene
from neuron_plugin.planning.victims import (
    PREEMPTION,
    RULES,
    Move,
    MoveRules,
    Relocation,
    cheapest_move,
    drain,
    how_many_fit,
)
