"""The annotations, labels and the scheduling gate by which plugin, placement controller and commands communicate.

A key is a contract between versions of these parts, so each is defined here once.
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
"""The keys that hold ids; a pod with any of them has an assignment."""

# Constraints on a pod's devices beyond their number, set by its author.
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
"""On a pod: the placement strategy for it, instead of the controller's own."""
GATE = f"{PREFIX}placement"
"""The scheduling gate of a pod that is placed before any scheduler sees it: not the annotation of the same name."""
NODE_KEY = f"{PREFIX}node"
"""On a pod, as annotation: the node where it was placed. As label: the same, as ``node_label`` writes it."""
POD_UID_KEY = f"{PREFIX}pod-uid"
"""On a pod: the UID of the pod that was placed. A copy of that pod has another UID, and was not placed."""
RELEASED_KEY = f"{PREFIX}released"
"""On a pod: it was released to its scheduler without a node. ``excluded``: its node affinity excludes the nodes that
have no linked set for it."""
GROUP_KEY = f"{PREFIX}group"
"""On a pod, as annotation or label: the group with which it is placed as a whole, in its namespace."""
GROUP_SIZE_KEY = f"{PREFIX}group-size"
"""On a pod, as annotation or label: how many pods its group has."""
TOPOLOGY_KEY = f"{PREFIX}topology"
"""On a pod of a group: how near the pods have to be, ``required=LEVEL``, ``preferred=LEVEL`` or ``none``."""
SLICE_KEY = f"{PREFIX}slice"
"""On a pod of a group: ``size=N,required=LEVEL``, each N pods in the order of their ranks are in one domain."""
WINDOW_KEY = f"{PREFIX}window"
"""On a pod of a group: with ``any``, its pods may have different sets on different nodes."""
SPARES_KEY = f"{PREFIX}spares"
"""On a pod of a group: how many whole nodes in the group's domain are kept to replace lost pods, 1 to 8."""
PREFLIGHT_KEY = f"{PREFIX}preflight"
"""On a node: the result of its pre-flight check, as ``preflight`` writes it. On a pod of a group, as annotation:
``group``, its places are checked first. On a check pod, as label: ``node`` or ``group``. On the leader's Lease: the
scope of checks, as ``CheckScope`` writes it."""
PREFLIGHT_GROUP_KEY = f"{PREFIX}preflight-group"
"""On a check pod of a group: the place that it checks, as ``group_checks`` writes it."""
RANK_KEY = f"{PREFIX}rank"
"""On a pod: its rank in its group. Also written with a placement."""
DOMAIN_KEY = f"{PREFIX}domain"
"""On a pod of a group, written with its placement: the domains that all pods of the group share, broadest first."""
ULTRASERVER_KEY = f"{PREFIX}ultraserver"
"""On a pod of a group that has whole UltraServers, written with its placement: its place in them, as ``ultraserver``
writes it."""
MOVABLE_KEY = f"{PREFIX}movable"
"""On a pod or namespace: "true" allows to evict a pod if that makes room for another and the pod fits elsewhere."""
LAST_CHECKPOINT_KEY = f"{PREFIX}last-checkpoint"
"""On a pod: when it last saved its work (RFC 3339). An eviction loses the work since then."""
UNHEALTHY_LABEL = f"{PREFIX}device-unhealthy"
"""Label of a pod that has an unhealthy device, if the plugin is configured to write it."""

# On a node.
INVENTORY_KEY = f"{PREFIX}inventory"
"""The node's inventory, as ``inventory.py`` writes and reads it."""
DISABLE_KEY = f"{PREFIX}disable-devices"
"""Devices that no new pod gets, as a list of ids, set by an operator. Pods keep the devices that they have."""
UTILIZATION_KEY = f"{PREFIX}utilization"
"""On the Lease of a node's plugin: how much containers use their cores, as ``utilization`` writes it."""
