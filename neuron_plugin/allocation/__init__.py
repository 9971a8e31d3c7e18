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

from neuron_plugin.allocation.assignment import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    ASSIGNMENT_KEYS,
    CORES_KEY,
    DEVICES_KEY,
    VENDOR_IDS_KEY,
    VENDOR_RESOURCE_KEY,
    Assignment,
    AssignmentError,
    ContainerAssignment,
    Dialect,
    read_assignment,
    write_assignment,
)
from neuron_plugin.allocation.constraints import (
    CONSTRAINT_KEYS,
    DEVICE_NAME_KEY,
    LONGEST_CONSTRAINT,
    PREFIX,
    Constraints,
    read_constraints,
)
from neuron_plugin.allocation.cost import cost, costs, devices_lost, tie_rank
from neuron_plugin.allocation.decision_log import (
    REMEMBERED,
    DecisionLog,
    LoggedDecision,
    Step,
    decisions_document,
    explain_decision,
)
from neuron_plugin.allocation.inventory import (
    DISABLE_KEY,
    DISABLED_REASON,
    INVENTORY_KEY,
    LONGEST_WORD,
    InventoryError,
    NodeInventory,
    disabled_devices,
    read_inventory,
    write_inventory,
)
from neuron_plugin.allocation.ledger import (
    Allocation,
    Ledger,
    PodReference,
    PodUid,
    mask_union,
)
from neuron_plugin.allocation.narrowing import (
    NO_FACTS,
    DeviceFacts,
    amounts_used,
    constraint_not_kept,
    device_facts,
    has_preference,
    is_constrained,
    unconstrained,
    usable_mask,
)
from neuron_plugin.allocation.node import (
    CORDONED,
    OVERLAPPING_ASSIGNMENTS,
    STALE_PLUGIN,
    Capacity,
    NeuronNode,
    NodeInfo,
    Reservation,
    capacity_of,
    node_info,
)
from neuron_plugin.allocation.node_rules import (
    NO_USE,
    NOT_LOOKED_AT,
    VOLUMES,
    HostPort,
    NodeRules,
    NodeUse,
    PodRules,
    PodSelector,
    Quantities,
    Volume,
    is_tight,
    lacks_counts,
    node_use,
    objections,
    shortages,
)
from neuron_plugin.allocation.placement import (
    ContainerSet,
    Placement,
    choose,
    cores_asked,
    place,
    place_healthy,
    placement_mask,
    why_not,
)
from neuron_plugin.allocation.pod import (
    GATE,
    GROUP_KEY,
    GROUP_SIZE_KEY,
    LAST_CHECKPOINT_KEY,
    MOVABLE_KEY,
    NODE_KEY,
    PLACEMENT_KEY,
    POD_UID_KEY,
    TERMINAL_PHASES,
    UNHEALTHY_LABEL,
    NeuronPod,
    PlacementStrategy,
    assigned_allocations,
    is_movable,
    node_label,
    placement_strategy,
    unknown_products,
)
from neuron_plugin.allocation.rejection import (
    INVALID_REQUEST,
    NO_ASSIGNMENT,
    UNREADABLE_ASSIGNMENT,
    WRONG_PRODUCT,
    Rejection,
)
from neuron_plugin.allocation.requests import (
    Amounts,
    ContainerKind,
    ContainerRequest,
    ContainerSpec,
    PodRequest,
    RequestError,
    parse_count,
    parse_quantity,
    pod_request,
)
from neuron_plugin.allocation.resources import (
    IdListError,
    Resource,
    format_ids,
    ids_of,
    mask_of,
    masks_by_id,
    parse_ids,
    ranges,
)
