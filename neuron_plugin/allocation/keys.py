"""The annotations, labels and the scheduling gate on pods and nodes that the project's parts read from each other.

A key is a contract between versions of the plugin and of the placement controller: it stands here once.
"""

PREFIX = "neuron-plugin.io/"

# The assignment on a pod, in our dialect and in the vendor's.
DEVICES_KEY = "NEURON_DEVS"
CORES_KEY = "NEURON_CORES"
ALLOC_TIME_KEY = "NEURON_ALLOC_TIME"
ALLOCATED_KEY = "NEURON_ALLOCATED"
VENDOR_IDS_KEY = "AWS_NEURON_IDS"
VENDOR_RESOURCE_KEY = "NEURON_RESOURCE_TYPE"
ASSIGNMENT_KEYS = (DEVICES_KEY, CORES_KEY, VENDOR_IDS_KEY)
"""The keys that say which ids; any of them makes an assignment."""

# What the author of a pod asks of its devices beyond their number.
DEVICE_NAME_KEY = f"{PREFIX}device-name"
ALLOW_KEY = f"{PREFIX}allow-devices"
DENY_KEY = f"{PREFIX}deny-devices"
PREFER_KEY = f"{PREFIX}prefer-devices"
SAME_DEVICE_KEY = f"{PREFIX}same-device"
PREFER_NUMA_KEY = f"{PREFIX}prefer-numa"
BALANCE_KEY = f"{PREFIX}balance"
CONSTRAINT_KEYS = (DEVICE_NAME_KEY, ALLOW_KEY, DENY_KEY, PREFER_KEY, SAME_DEVICE_KEY, PREFER_NUMA_KEY, BALANCE_KEY)

# How a pod is placed.
PLACEMENT_KEY = f"{PREFIX}placement"
"""On a pod: the strategy by which its node is chosen, in place of the controller's own."""
GATE = f"{PREFIX}placement"
"""The scheduling gate of a pod that is placed before any scheduler looks at it: no annotation, though spelled alike."""
NODE_KEY = f"{PREFIX}node"
"""On a pod, as annotation: the node where it was placed. As label: the same, as ``node_label`` writes it."""
POD_UID_KEY = f"{PREFIX}pod-uid"
"""On a pod: the UID of the pod that was placed. A copy of the pod has another one, and was not."""
RELEASED_KEY = f"{PREFIX}released"
"""On a pod: it was handed to its scheduler without a node. ``excluded`` says that its node affinity leaves out those
nodes that have no linked set for it."""
GROUP_KEY = f"{PREFIX}group"
"""On a pod, as annotation or label: the group with which it is placed as a whole, in its namespace."""
GROUP_SIZE_KEY = f"{PREFIX}group-size"
"""On a pod, as annotation or label: how many pods its group has."""
TOPOLOGY_KEY = f"{PREFIX}topology"
"""On a pod of a group: how near the pods have to be, ``required=LEVEL``, ``preferred=LEVEL`` or ``none``."""
SLICE_KEY = f"{PREFIX}slice"
"""On a pod of a group: ``size=N,required=LEVEL``, so many pods in the order of their ranks are in one domain."""
WINDOW_KEY = f"{PREFIX}window"
"""On a pod of a group: ``any`` lets its pods have other sets on one node than on another."""
SPARES_KEY = f"{PREFIX}spares"
"""On a pod of a group: how many whole nodes of the group's domain are kept for pods of it that are lost, 1 to 8."""
PREFLIGHT_KEY = f"{PREFIX}preflight"
"""On a node: how its check before it takes pods went, as ``preflight`` writes it. On a pod of a group, as annotation:
``group``, its places are checked first. On the pod of a check, as label: ``node`` or ``group``. On the Lease of the
leader: what it checks, as ``CheckScope`` writes it."""
PREFLIGHT_GROUP_KEY = f"{PREFIX}preflight-group"
"""On the pod of a group's check: the place that it checks, as ``group_checks`` writes it."""
RANK_KEY = f"{PREFIX}rank"
"""On a pod: its place in the order of its group's pods. Written with a placement, too."""
DOMAIN_KEY = f"{PREFIX}domain"
"""On a pod of a group, written with its placement: the domains that all of the group share, broad to narrow."""
ULTRASERVER_KEY = f"{PREFIX}ultraserver"
"""On a pod of a group that has UltraServers whole, written with its placement: its place there, as ``ultraserver``
writes it."""
MOVABLE_KEY = f"{PREFIX}movable"
"""On a pod or namespace: "true" lets a pod be evicted where that makes room for another and it fits elsewhere."""
LAST_CHECKPOINT_KEY = f"{PREFIX}last-checkpoint"
"""On a pod: when it last saved its work (RFC 3339), from which on an eviction would lose it."""
UNHEALTHY_LABEL = f"{PREFIX}device-unhealthy"
"""Label of a pod that has an unhealthy device, where the plugin is set to write it."""

# On a node.
INVENTORY_KEY = f"{PREFIX}inventory"
"""The node's inventory, as ``inventory.py`` writes and reads it."""
DISABLE_KEY = f"{PREFIX}disable-devices"
"""Of an operator: devices that no new pod is given, as a list of ids. Pods that have one keep it."""
UTILIZATION_KEY = f"{PREFIX}utilization"
"""On the Lease of a node's plugin: how much containers use their cores, as ``utilization`` writes it."""
