"""Who holds what on one node, and which set a request gets or why it gets none.

What holds on any node in any state, whatever is asked:

- A set that is handed out is valid for the node's geometry, and free and healthy as a whole. The set of a pod with one
  requesting container costs later pods least, and among equals it has the lowest ids.
- The containers of a pod get disjoint silicon in whatever unit they ask. The exception is what plain init containers
  had: later containers re-use it under the same resource name, as the kubelet will.
- A refusal means that nothing fits or, for a pod of many unlike containers, that nothing was found within a bound. Its
  text is one of a few. One that cannot pass stays true whichever pods end.
- A constraint of a pod only takes sets away. Pods that are placed here have no more of an amount than there is.
- Equal questions have equal answers: there is no clock, no randomness, and no state but what was computed before.
- What is written on a pod or a node reads back as it was. Any other text ends in a value that fits the pod or the node,
  or in the one typed error.
- Ids outside the geometry count for nothing, and no number or text from outside is computed with before it is bounded.
"""

from neuron_plugin.allocation.assignment import Dialect
from neuron_plugin.allocation.constraints import Constraints
from neuron_plugin.allocation.inventory import InventoryError, NodeInventory
from neuron_plugin.allocation.narrowing import DeviceFacts
from neuron_plugin.allocation.node import Capacity, NeuronNode, NodeInfo
from neuron_plugin.allocation.placement import Assignment, ContainerSet, Placement
from neuron_plugin.allocation.pod import Allocation, Ledger, NeuronPod, PlacementStrategy, PodReference, PodUid
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import IdListError, Resource
