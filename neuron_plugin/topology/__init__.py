"""Instance types, links and valid sets of Neuron devices, as values."""

from neuron_plugin.topology.geometry import (
    MOST_CORES_PER_DEVICE,
    MOST_DEVICES,
    MOST_SHAPES,
    NO_CORES,
    CoreMask,
    DeviceId,
    Geometry,
    Unit,
    cores_in,
)
from neuron_plugin.topology.instances import (
    Catalogue,
    InstanceType,
    catalogue,
    family_of,
    geometry_of,
    product_names,
)
from neuron_plugin.topology.links import TORI, Grid, Topology, grids_of, links_of
from neuron_plugin.topology.sets import free_sets, sets_by_count, valid_sets
