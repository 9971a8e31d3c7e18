"""``neuron-plugin simulate types``: which instance types are known, and what can be asked for on each."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import msgspec

from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.cli.tables import print_table
from neuron_plugin.inspection.text import ranges
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.topology import Catalogue, Geometry, InstanceType, Unit, valid_counts

VERSION = 1
HEADERS = ("TYPE", "DEVICES", "PRODUCT", "CORES/DEVICE", "LNC", "MEMORY/DEVICE", "TOPOLOGY", "DEVICE-COUNTS")


class TypeReport(msgspec.Struct, frozen=True, rename="camel"):
    """One instance type. ``cores_per_device`` are physical; ``device_counts`` are what one can ask for."""

    name: str
    devices: int
    product: str
    cores_per_device: int
    logical_core_size: int
    memory_gib_per_device: int
    topology: str
    device_counts: tuple[int, ...]


class TypesReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every known type, by ascending name."""

    version: int = VERSION
    types: tuple[TypeReport, ...]


def register(actions: Subparsers) -> None:
    """Add the action."""
    parser = add_command(actions, "types", run, summary="list the instance types that can be simulated")
    add_output_flag(parser)
    parser.add_argument("--instance-types", type=Path, metavar="FILE", help="YAML file of further instance types")


def known_types(name: str, file: Path | None = None) -> Catalogue:
    """The instance types, ``name`` among them.

    Raises:
        UsageError: it is not.
        SettingsError: the file of further types cannot be used.
    """
    types = load_catalogue(file)
    if name not in types:
        raise UsageError(f"--type {name} is not known: see 'neuron-plugin simulate types'")
    return types


def run(arguments: Namespace) -> int:
    """List the instance types that are known."""
    types, form = load_catalogue(arguments.instance_types), Form(arguments.output)
    found = tuple(_type_report(types[name]) for name in sorted(types))
    if form is Form.TEXT:
        print_table(HEADERS, [[(cell, "") for cell in _row(each)] for each in found])
    else:
        print(document(form, TypesReport(types=found)), end="")
    return Exit.FINE


def _type_report(instance: InstanceType) -> TypeReport:
    size = instance.logical_core_size
    geometry = Geometry(
        instance.name, instance.topology, instance.devices, instance.cores_per_device // size, instance.block_sizes
    )
    return TypeReport(
        name=instance.name,
        devices=instance.devices,
        product=instance.device_name,
        cores_per_device=instance.cores_per_device,
        logical_core_size=size,
        memory_gib_per_device=instance.memory_gib,
        topology=instance.topology.value,
        device_counts=valid_counts(geometry, Unit.DEVICE),
    )


def _row(told: TypeReport) -> tuple[str, ...]:
    return (
        told.name,
        str(told.devices),
        told.product,
        str(told.cores_per_device),
        str(told.logical_core_size),
        f"{told.memory_gib_per_device}Gi",
        told.topology,
        ranges(told.device_counts),
    )
