"""The user's file of further instance types.

It adds types to the catalogue that are newer than our release, or corrects types::

    instance-types:
      - name: trn9.48xlarge
        device-name: Trainium9
        devices: 16
        cores-per-device: 8        # physical
        memory-gib: 144
        topology: torus            # single, line, ring, torus or unlinked
        logical-core-size: 2
        block-sizes: [1, 4, 8, 16] # leave out for any run of consecutive devices, unless it is a torus
        core-block-sizes: [1, 2, 4, 8, 16] # of slices of cores, in devices; leave out for those of block-sizes
        numa-nodes: []
        amounts: {shares: 100}     # what pods may ask of a device beside memory, as neuron-plugin.io/shares
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from neuron_plugin.allocation.inventory import LONGEST_WORD
from neuron_plugin.settings import SettingsError, read_yaml
from neuron_plugin.topology import (
    MOST_CORES_PER_DEVICE,
    MOST_DEVICES,
    InstanceType,
    Topology,
    catalogue,
)

_Devices = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
_Cores = Annotated[int, Meta(ge=1, le=MOST_CORES_PER_DEVICE)]
_Amount = Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")]


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_WORD)]
    device_name: Annotated[str, Meta(max_length=LONGEST_WORD)] = ""
    devices: _Devices
    cores_per_device: _Cores
    memory_gib: Annotated[int, Meta(ge=0)] = 0
    topology: Topology
    logical_core_size: _Cores = 1
    block_sizes: tuple[_Devices, ...] | None = None
    core_block_sizes: tuple[_Devices, ...] = ()
    numa_nodes: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    amounts: dict[_Amount, Annotated[int, Meta(ge=0)]] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    instance_types: tuple[_Entry, ...]


def load_catalogue(file: Path | None) -> dict[str, InstanceType]:
    """The shipped instance types with the types of ``file``, which replace types of the same name.

    Raises:
        SettingsError: the file cannot be read, or an entry has an unknown key or a value out of range.
    """
    if file is None:
        return catalogue()
    try:
        entries = msgspec.convert(read_yaml(file), _File).instance_types
    except msgspec.ValidationError as error:
        raise SettingsError(f"instance types of {file}: {error}") from None
    types = []
    for entry in entries:
        if problem := next(_contradictions(entry), None):
            raise SettingsError(f"instance type {entry.name} of {file}: {problem}")
        fields = msgspec.structs.asdict(entry)
        if entry.block_sizes is None:
            fields["block_sizes"] = entry.topology.blocks
        fields["amounts"] = tuple(sorted(entry.amounts.items()))
        types.append(InstanceType(**fields))
    return catalogue(types)


def _contradictions(entry: _Entry) -> Iterator[str]:
    """Values that contradict each other; single values are checked already."""
    if entry.numa_nodes and len(entry.numa_nodes) != entry.devices:
        yield f"{len(entry.numa_nodes)} numa-nodes, expected one for each of its {entry.devices} devices, or none"
    if not entry.topology.can_link(entry.devices):
        yield f"{entry.topology} with {entry.devices} devices, which cannot be: say how they are linked, or unlinked"
    if "memory" in entry.amounts:
        yield "memory among its amounts, expected it as memory-gib"
    if entry.cores_per_device % entry.logical_core_size:
        yield f"logical-core-size {entry.logical_core_size} does not divide {entry.cores_per_device} cores-per-device"
