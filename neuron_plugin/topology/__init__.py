"""Which Neuron device sets exist: instance types, links and allowed sets, as values."""

from neuron_plugin.topology.geometry import (
    MOST_CORES_PER_DEVICE,
    MOST_DEVICES,
    MOST_SHAPES,
    NO_CORES,
    CoreMask,
    DeviceId,
    Geometry,
    Topology,
    Unit,
    cores_in,
)
from neuron_plugin.topology.instances import (
    BLOCKS,
    Catalogue,
    InstanceType,
    catalogue,
    family_of,
    geometry_of,
    product_names,
)
from neuron_plugin.topology.links import TORUS_SIDE, can_link, links_of
from neuron_plugin.topology.sets import free_sets, sets_by_count, valid_sets
