"""What this node tells the cluster about its hardware: one annotation for the extender, a few labels for people."""

from __future__ import annotations

import re

from neuron_plugin.allocation.inventory import INVENTORY_KEY, write_inventory
from neuron_plugin.cluster.api import ApiRequest
from neuron_plugin.cluster.writes import describe_node
from neuron_plugin.hardware.generations import GENERATIONS
from neuron_plugin.plugin.machine import Machine

LABEL_PREFIX = "neuron-plugin.io"

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_LABEL = 63


def node_labels(machine: Machine) -> dict[str, str | None]:
    """Labels of a machine; one whose value is not known is removed."""
    generation = GENERATIONS.get(machine.device_name)
    values = {
        "family": generation.family.lower() if generation else "",
        "device-name": machine.device_name,
        "driver-version": machine.driver_version.text if machine.driver_version else "",
        "logical-core-size": str(machine.logical_core_size),
    }
    return {f"{LABEL_PREFIX}/{name}": _label_value(value) for name, value in values.items()}


def publication(node_name: str, machine: Machine) -> ApiRequest:
    """The patch that makes the node say what the machine is."""
    annotations: dict[str, str | None] = {INVENTORY_KEY: write_inventory(machine.inventory())}
    return describe_node(node_name, annotations=annotations, labels=node_labels(machine))


def _label_value(text: str) -> str | None:
    """A legal label value, which begins and ends with a letter or digit; None when nothing is left of it."""
    return _NOT_IN_LABELS.sub("-", text)[:_LONGEST_LABEL].strip("._-") or None
