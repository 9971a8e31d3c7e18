"""Is the driver there, and is it one with known trouble?

Versions from the Neuron driver's history (2.12 to 2.30.2) and the SDK's release notes to 2.32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuron_plugin.hardware import DriverVersion
from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Finding, Level, note, or_ok, problem, warning
from neuron_plugin.inspection.text import plural
from neuron_plugin.inspection.unknown import Unknown

_UPDATE = "update the host's driver (package aws-neuronx-dkms, or a newer Neuron AMI) when the node is next drained"
_NO_UPDATE = "no newer driver supports Inf1: drain the node and stop the plugin before the driver is unloaded"
_ECC_PRODUCTS = ("Trainium1", "Trainium2", "Trainium3", "Inferentia2")


@dataclass(frozen=True, slots=True)
class _Issue:
    """What is wrong with drivers before ``fixed_in``. No ``products``: with all of them."""

    fixed_in: tuple[int, ...]
    level: Level
    what: str
    affected: str
    products: tuple[str, ...] = ()


_ISSUES = (
    _Issue(
        (2, 12, 14),
        Level.WARNING,
        "knows host numbers only",
        "containers get host numbers for devices and cores; images made for newer nodes look for /dev/neuron0",
    ),
    _Issue(
        (2, 13, 4),
        Level.NOTE,
        "does not tell which devices are linked",
        "the links are taken from the instance type; on a type that is not known no set of several devices is offered",
    ),
    _Issue(
        (2, 14, 5),
        Level.NOTE,
        "has no counters of memory errors",
        "a device with broken memory stays offered",
        _ECC_PRODUCTS,
    ),
    _Issue(
        (2, 26, 5),
        Level.WARNING,
        "can crash the kernel when it is unloaded while somebody reads its sysfs tree",
        "this plugin and every monitor of the node read there",
    ),
    _Issue(
        (2, 27),
        Level.WARNING,
        "does not work with the Neuron runtime of SDK 2.32",
        "containers with that runtime or a newer one fail at start",
        _ECC_PRODUCTS,
    ),
    _Issue(
        (2, 28),
        Level.NOTE,
        "may count a repairable memory error as one that is not",
        "a device may be held back that a reset would mend",
        _ECC_PRODUCTS,
    ),
    _Issue(
        (2, 30, 2),
        Level.NOTE,
        "does not tell which parts of a device are broken",
        "health rests on the reset state and the error counters alone",
        _ECC_PRODUCTS,
    ),
)

_INF1 = "Inferentia"
_FIRST_WITHOUT_INF1 = (2, 25)


def check_driver(facts: Facts) -> Iterator[Finding]:
    """Loaded, of a known version, and none that is known for trouble."""
    version = facts.machine.inventory.driver_version
    if not facts.host.driver_loaded:
        yield _not_loaded(facts)
    elif version is None:
        yield warning(
            "the Neuron driver is loaded, but does not tell its version",
            "container numbering then falls back to host numbers, which a newer driver reads differently",
            "look at /sys/module/neuron/version; if it is right, give the plugin --numbering container",
        )
    else:
        yield from or_ok(_trouble(facts, version), f"Neuron driver {version.text} is loaded")


def _not_loaded(facts: Facts) -> Finding:
    pci = facts.host.pci
    seen = "the Neuron driver is not loaded"
    why = "without it there are no devices: the plugin offers nothing and pods that ask for Neuron stay Pending"
    if isinstance(pci, Unknown):
        return problem(seen, why, "load it ('modprobe neuron') or install it (package aws-neuronx-dkms)")
    if not pci:
        return problem(
            "the Neuron driver is not loaded, and the PCI bus has no Neuron chip",
            "this machine has nothing to offer",
            "if it should have: check its instance type; if not: keep the DaemonSet off such nodes (nodeSelector)",
        )
    return problem(
        f"{seen}, though the PCI bus has {plural(len(pci), pci[0].product + ' chip')}",
        why,
        "load it: 'modprobe neuron'; if there is no such module, install the package aws-neuronx-dkms; see 'dmesg'",
    )


def _trouble(facts: Facts, version: DriverVersion) -> Iterator[Finding]:
    pci = facts.host.pci
    products = {function.product for function in pci} if not isinstance(pci, Unknown) else set()
    if version.at_least(*_FIRST_WITHOUT_INF1) and _INF1 in products:
        yield problem(
            f"Neuron driver {version.text} does not support the Inf1 chips of this machine",
            "it makes no devices for them",
            "install the last driver that does, 2.24.x",
        )
    product = facts.machine.inventory.device_name
    for issue in _ISSUES:
        if not version.at_least(*issue.fixed_in) and (not issue.products or product in issue.products):
            yield _told(issue, version, product)


def _told(issue: _Issue, version: DriverVersion, product: str) -> Finding:
    mended = ".".join(map(str, issue.fixed_in))
    seen = f"Neuron driver {version.text} {issue.what} (mended in {mended})"
    if product == _INF1 and issue.fixed_in >= _FIRST_WITHOUT_INF1:
        return note(seen, issue.affected, _NO_UPDATE)
    return Finding(level=issue.level, seen=seen, why=issue.affected, action=_UPDATE)
