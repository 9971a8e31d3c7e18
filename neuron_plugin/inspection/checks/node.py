"""Does the node say what is true: our inventory, and what the vendor's extender left?

The vendor's extender keeps its account in two annotations of the node, which outlive it: after a restart or a new
installation it believes them, and devices stay "used" that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation import INVENTORY_KEY, HolderLedger, InventoryError, mask_of, read_inventory
from neuron_plugin.inspection.facts import Cluster, Facts
from neuron_plugin.inspection.findings import Finding, note, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.text import named, plural, ranges
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.topology import Geometry, Unit

VENDOR_MAPS = {"NEURON_DEV_USAGE_MAP": Unit.DEVICE, "NEURON_CORE_USAGE_MAP": Unit.CORE}


def check_node_annotations(facts: Facts) -> Iterator[Finding]:
    """Our inventory against the machine, the vendor's usage maps against who holds what."""
    cluster = facts.cluster
    if isinstance(cluster, Unknown):
        yield unchecked(cluster)
        return
    findings = (*_inventory(facts, cluster), *_maps(facts, cluster))
    yield from or_ok(findings, f"node {cluster.node_name} is annotated as it is")


def _inventory(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    text, geometry = cluster.annotations.get(INVENTORY_KEY), facts.machine.geometry
    if text is None:
        if facts.we_serve and geometry:
            yield warning(
                f"node {cluster.node_name} has no annotation {INVENTORY_KEY}",
                "the extender has to guess what this node has, and does not hear of sick devices",
                "see the plugin's log: it needs the right to patch nodes; with --no-cluster it writes none",
            )
        return
    if not facts.we_serve and not facts.kubelet.trouble:
        yield note(
            f"node {cluster.node_name} has an inventory, and neuron-plugin does not run here",
            "it tells what was true when the plugin last ran",
            f"if it was uninstalled: kubectl annotate node {cluster.node_name} {INVENTORY_KEY}-",
        )
        return
    yield from _told_inventory(facts, cluster, text, geometry)


def _told_inventory(facts: Facts, cluster: Cluster, text: str, geometry: Geometry | None) -> Iterator[Finding]:
    see = "run this again in 10 s; if it stays, see the plugin's log for 'API server'"
    try:
        told = read_inventory(text)
    except InventoryError as error:
        yield problem(
            f"the inventory of node {cluster.node_name} cannot be read: {error}",
            "the extender gives this node no pods",
            "use plugin and extender of one release; the plugin writes it anew when it starts",
        )
        return
    if geometry and told.geometry != geometry:
        yield problem(
            f"node {cluster.node_name} tells of {_shape(told.geometry)}, this machine is {_shape(geometry)}",
            "the extender chooses sets that do not exist here",
            f"{see}; is --node-name this node's?",
        )
    elif geometry:
        sick = {int(device) for device, verdict in facts.machine.verdicts.items() if not verdict.healthy}
        untold = (
            (sick | set(facts.machine.missing))
            - set(told.unhealthy)
            - set(range(geometry.device_count)).difference(told.present)
        )
        if untold:
            yield warning(
                f"node {cluster.node_name} tells nothing of missing or unhealthy devices: {ranges(untold)}",
                "the extender goes on choosing them",
                see,
            )


def _shape(geometry: Geometry) -> str:
    devices, cores = plural(geometry.device_count, "device"), plural(geometry.cores_per_device, "logical core")
    return f"{geometry.instance_type}, {devices} of {cores}"


def _maps(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    for key, unit in VENDOR_MAPS.items():
        value = cluster.annotations.get(key)
        if value is None:
            continue
        remedy = f"without the vendor's extender in this cluster: kubectl annotate node {cluster.node_name} {key}-"
        leaked = _leaked(facts, unit, value)
        if leaked:
            yield warning(
                f"{key} of node {cluster.node_name} has {named(unit.value, leaked)} in use, held by no pod",
                "the vendor's extender believes it and leaves pods Pending; neuron-plugin does not look at it",
                remedy + "; with it: the same, then restart it",
            )
        else:
            yield note(
                f"node {cluster.node_name} has the vendor's {key}",
                "the vendor's extender runs or has run here; neuron-plugin does not look at it",
                remedy,
            )


def _leaked(facts: Facts, unit: Unit, value: str) -> list[int]:
    """Entries that say "used" though nothing of them is held; none where holders are not known."""
    ledger, geometry = facts.ledger, facts.machine.geometry
    if not isinstance(ledger, HolderLedger) or geometry is None:
        return []
    used = [number for number, word in enumerate(value.split(",")) if word.strip().lower() == "true"]
    return [number for number in used if not mask_of(geometry, unit, (number,)) & ledger.used_mask]
