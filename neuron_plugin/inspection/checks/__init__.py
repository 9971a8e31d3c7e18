"""What ``doctor`` checks: functions from facts to findings, without I/O. A fault comes before its consequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from neuron_plugin.inspection.checks import claims, hardware, kubelet, pods
from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Finding, Findings, NotCheckedError, Unknown, ok, unchecked


@dataclass(frozen=True, slots=True)
class Check:
    """A named question to the facts; ``looks_at`` is its line in the list of checks."""

    name: str
    looks_at: str
    ask: Callable[[Facts], Findings]

    def findings(self, facts: Facts) -> list[Finding]:
        """The findings; if there is no other, one that says what is well."""
        findings, check = list[Finding](), self.ask(facts)
        while True:
            try:
                findings.append(next(check))
            except StopIteration as end:
                return findings or [ok(end.value)]
            except NotCheckedError as error:
                return [*findings, unchecked(error.unknown)]


CHECKS = (
    Check("driver", "the driver is loaded, and its version has no known fault", hardware.check_driver),
    Check("devices", "all devices of the instance type are there", hardware.check_devices),
    Check("device-nodes", "/dev/neuronN: present, of this driver, for every user", hardware.check_nodes),
    Check("sysfs", "the driver's attributes can be read and make sense", hardware.check_sysfs),
    Check("logical-cores", "LNC is legal here", hardware.check_logical_cores),
    Check("configuration", "the daemon's settings can be used, and are known here", kubelet.check_configuration),
    Check("health", "no device has errors", hardware.check_health),
    Check("disabled", "no device was taken out of service by an operator", hardware.check_disabled),
    Check("kubelet", "kubelet.sock and PodResources answer, the checkpoint can be read", kubelet.check_kubelet),
    Check("plugin", "our sockets: one for each resource or driver, and it answers", kubelet.check_plugin),
    Check("registration", "the kubelet offers what the machine has, or follows the driver", kubelet.check_registration),
    Check("claims", "the kubelet's file of claims can be read, the CDI file is there", claims.check_claims),
    Check("slice", "the API server shows all devices to claims, with their taints", claims.check_slice),
    Check("sources", "the daemon hears kernel log, firmware and uevents", kubelet.check_sources),
    Check("holders", "no core twice, sets linked, devices usable", pods.check_holders),
    Check("annotations", "pods are annotated with what they hold", pods.check_annotations),
    Check("node-annotations", "the node's inventory is this machine's", pods.check_node_annotations),
    Check("processes", "no process uses a device that is not its pod's", pods.check_processes),
    Check("vendor-plugin", "neither the vendor's device plugin nor its DRA driver is here", kubelet.check_vendor),
    Check("oci-hook", "no container runtime uses the vendor's OCI hook", kubelet.check_oci_hook),
)


def examine(facts: Facts, checks: Iterable[Check] = CHECKS) -> Iterator[Finding]:
    """Make the checks. Each yields at least one finding, and an error in one does not end the others."""
    for check in checks:
        try:
            findings = check.findings(facts)
        except Exception as error:  # noqa: BLE001 - on a broken node the other checks are wanted most
            findings = [unchecked(Unknown(f"this check failed itself ({error!r})", "please report it"))]
        yield from (msgspec.structs.replace(finding, check=check.name) for finding in findings)
