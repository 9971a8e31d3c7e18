"""All checks, in the order in which trouble spreads: from the driver to the pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from neuron_plugin.inspection.checks.daemon import check_configuration, check_plugin, check_sources
from neuron_plugin.inspection.checks.devices import check_devices, check_health, check_logical_cores
from neuron_plugin.inspection.checks.driver import check_driver
from neuron_plugin.inspection.checks.files import check_nodes, check_sysfs
from neuron_plugin.inspection.checks.kubelet import check_kubelet, check_registration
from neuron_plugin.inspection.checks.node import check_node_annotations
from neuron_plugin.inspection.checks.pods import check_annotations, check_holders
from neuron_plugin.inspection.checks.processes import check_numbering, check_processes
from neuron_plugin.inspection.checks.vendor import check_dra_driver, check_oci_hook, check_vendor_plugin
from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Check, Finding, unchecked
from neuron_plugin.inspection.unknown import Unknown

CHECKS = (
    Check("driver", "the driver is loaded, and is no version with known trouble", check_driver),
    Check("devices", "all devices of the instance type are there", check_devices),
    Check("device-nodes", "/dev/neuronN: present, of this driver, for everybody", check_nodes),
    Check("sysfs", "what the driver tells can be read; links as the type has them", check_sysfs),
    Check("logical-cores", "LNC is legal here", check_logical_cores),
    Check("configuration", "the daemon's settings can be used, and are known here", check_configuration),
    Check("health", "no device has errors", check_health),
    Check("kubelet", "kubelet.sock and PodResources answer", check_kubelet),
    Check("plugin", "our sockets: one for each resource, and it answers", check_plugin),
    Check("registration", "the kubelet offers what the machine has", check_registration),
    Check("sources", "the daemon hears kernel log, firmware and uevents (asks its readiness page)", check_sources),
    Check("holders", "no core twice, sets linked, devices usable (PodResources)", check_holders),
    Check("annotations", "pods are annotated with what they hold", check_annotations),
    Check("node-annotations", "our inventory is true; usage maps of the vendor's extender", check_node_annotations),
    Check("numbering", "containers count devices as the driver does", check_numbering),
    Check("processes", "no process uses a device that is not its pod's", check_processes),
    Check("vendor-plugin", "the vendor's device plugin is not beside ours", check_vendor_plugin),
    Check("dra-driver", "the vendor's DRA driver is not beside us", check_dra_driver),
    Check("oci-hook", "no container runtime uses the vendor's OCI hook", check_oci_hook),
)


def examine(facts: Facts, checks: Iterable[Check] = CHECKS) -> Iterator[Finding]:
    """Make the checks, each whatever becomes of the others; each finds at least one thing."""
    for check in checks:
        yield from (msgspec.structs.replace(finding, check=check.name) for finding in _findings(check, facts))


def _findings(check: Check, facts: Facts) -> Sequence[Finding]:
    try:
        return tuple(check.ask(facts))
    except Exception as error:  # noqa: BLE001 - on a broken node the other checks are wanted most
        return (unchecked(Unknown(f"this check failed itself ({error!r})", "please report it")),)
