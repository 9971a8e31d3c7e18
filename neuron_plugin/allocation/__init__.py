"""The allocations of one node, and the choice of sets for a request, or the reason why there are none.

Rules for every node, state and request:

- A set that is handed out is valid for the node's geometry, and free and healthy as a whole. For a pod with one
  requesting container it is the set that costs later pods least, and of equals the one with the lowest ids.
- The containers of a pod get disjoint silicon, whatever their units. Exception: later containers re-use the sets of
  plain init containers under the same resource name, as in the kubelet.
- A refusal means that nothing fits or, for a pod of many unlike containers, that nothing was found within a bound.
  There are few texts. A refusal without ``may_pass`` stays true whichever pods end.
- A constraint of a pod only excludes sets. Placed pods never have more of an amount than the devices have.
- Equal questions have equal answers: there is no clock, no randomness, and no state except caches.
- Annotations that we write read back unchanged. Any other text gives a value that fits the pod or the node, or the one
  typed error.
- Ids outside the geometry are ignored. Numbers and texts from outside are bounded before they are used.
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
