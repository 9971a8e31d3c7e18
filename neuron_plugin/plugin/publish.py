"""What this node tells the cluster about its hardware: one annotation for the extender, a few labels for people.

All of it is taken back by ``withdrawal`` when the plugin is uninstalled; a daemon that ends leaves it, because the
next one will say the same and the extender would forget the node in between.
"""

from __future__ import annotations

import re

from neuron_plugin.allocation import INVENTORY_KEY, write_inventory
from neuron_plugin.cluster import ApiRequest, Node, describe_node
from neuron_plugin.hardware import GENERATIONS, UltraServer
from neuron_plugin.plugin.machine import Machine

LABEL_PREFIX = "neuron-plugin.io"
VENDOR_LABEL_PREFIX = "neuron.amazonaws.com"
"""The vendor's plugin (from 2.30) sets the UltraServer's ids under this prefix; jobs have affinities on them."""

_OF_MACHINE = ("family", "device-name", "driver-version", "logical-core-size", "physical-core-count")
_OF_SERVER = (
    "ultraserver-mode",
    "ultraserver-server-id-2",
    "ultraserver-node-id-2",
    "ultraserver-server-id-4",
    "ultraserver-node-id-4",
)
PUBLISHED_LABELS = frozenset(
    [f"{LABEL_PREFIX}/{name}" for name in (*_OF_MACHINE, *_OF_SERVER)]
    + [f"{VENDOR_LABEL_PREFIX}/{name}" for name in _OF_SERVER]
)
"""Every label this plugin may set on a node."""

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_LABEL = 63

_NO_ULTRASERVER = UltraServer("", "", "", "", "")


def node_labels(machine: Machine) -> dict[str, str | None]:
    """Labels of a machine; one whose value is not known is removed."""
    own = {f"{LABEL_PREFIX}/{name}": text for name, text in {**_of_machine(machine), **_of_server(machine)}.items()}
    vendors = {f"{VENDOR_LABEL_PREFIX}/{name}": text for name, text in _of_server(machine).items()}
    return {name: _label_value(text) for name, text in {**own, **vendors}.items()}


def publication(node_name: str, machine: Machine) -> ApiRequest:
    """The patch that makes the node say what the machine is."""
    annotations: dict[str, str | None] = {INVENTORY_KEY: write_inventory(machine.inventory())}
    return describe_node(node_name, annotations=annotations, labels=node_labels(machine))


def withdrawal(node: Node) -> ApiRequest | None:
    """The patch that takes back everything ``publication`` says; None where nothing of it is left."""
    labels = [name for name in node.labels if name in PUBLISHED_LABELS]
    if INVENTORY_KEY not in node.annotations and not labels:
        return None
    return describe_node(node.name, annotations={INVENTORY_KEY: None}, labels=dict.fromkeys(labels))


def _of_machine(machine: Machine) -> dict[str, str]:
    generation = GENERATIONS.get(machine.device_name)
    return {
        "family": generation.family.lower() if generation else "",
        "device-name": machine.device_name,
        "driver-version": machine.driver_version.text if machine.driver_version else "",
        "logical-core-size": str(machine.logical_core_size),
        "physical-core-count": str(machine.physical_core_count or ""),
    }


def _of_server(machine: Machine) -> dict[str, str]:
    """As the vendor names them. Its modes are joined by ``_``: a comma may not stand in a label."""
    ultraserver = machine.ultraserver or _NO_ULTRASERVER
    return {
        "ultraserver-mode": ultraserver.mode.replace(",", "_"),
        "ultraserver-server-id-2": ultraserver.server_id_2,
        "ultraserver-node-id-2": ultraserver.node_id_2,
        "ultraserver-server-id-4": ultraserver.server_id_4,
        "ultraserver-node-id-4": ultraserver.node_id_4,
    }


def _label_value(text: str) -> str | None:
    """A legal label value, which begins and ends with a letter or digit; None when nothing is left of it."""
    return _NOT_IN_LABELS.sub("-", text)[:_LONGEST_LABEL].strip("._-") or None
