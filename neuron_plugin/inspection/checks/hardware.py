"""Is the hardware there, does the driver show it as it should, and is it healthy?

Driver versions are from the Neuron driver's history (2.12 to 2.30.2) and the SDK's release notes to 2.32.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuron_plugin.allocation import IdListError
from neuron_plugin.allocation.inventory import disabled_devices
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.allocation.resources import format_ids, ranges
from neuron_plugin.hardware import joined_by_device
from neuron_plugin.hardware.health_signals import Severity, Signal
from neuron_plugin.inspection.facts import NO_DEVICE, ClusterFacts, Facts
from neuron_plugin.inspection.findings import (
    Finding,
    Findings,
    Level,
    NotCheckedError,
    Unknown,
    known,
    known_or,
    note,
    ok,
    problem,
    unchecked,
    warning,
)
from neuron_plugin.wording import named, plural

_UPDATE = "update the host's driver (package aws-neuronx-dkms, or a newer Neuron AMI) when the node is next drained"
_SEE_DMESG = "look for 'neuron' in 'dmesg'; reboot, and replace the instance if that does not help"
_NO_INF1 = (2, 25)
_RUNTIME_2_32 = (2, 27)
_ALL_USERS = 0o666
"""Read and write for owner, group and others."""

_ISSUES = (
    (
        (2, 12, 14),
        Level.WARNING,
        "knows host numbers only",
        "containers get host numbers for devices and cores; images made for newer nodes look for /dev/neuron0",
    ),
    (
        (2, 13, 4),
        Level.NOTE,
        "does not show which devices are linked",
        "the links are those of the instance type; on an unknown type no set of several devices is offered",
    ),
    (
        (2, 26, 5),
        Level.WARNING,
        "can crash the kernel when it is unloaded while a process reads its sysfs tree",
        "this plugin and every monitor of the node read there",
    ),
    (
        _RUNTIME_2_32,
        Level.WARNING,
        "does not work with the Neuron runtime of SDK 2.32",
        "containers with that runtime or a newer one fail at start",
    ),
)
"""Faults of drivers before a version: the version, how bad, what, and who is affected."""


def check_driver(facts: Facts) -> Findings:
    """The driver is loaded, and its version has no known fault."""
    version, pci = facts.machine.inventory.driver_version, facts.host.pci
    if not facts.host.driver_loaded:
        seen, action = "the Neuron driver is not loaded", "load it ('modprobe neuron') or install it"
        if pci == ():
            seen += ", and the PCI bus has no Neuron chip"
            action = (
                f"check the instance type; keep the DaemonSet off nodes without Neuron (nodeSelector); else {action}"
            )
        elif not isinstance(pci, Unknown):
            seen += f", though the PCI bus has {plural(len(pci), pci[0] + ' chip')}"
        why = "without it there are no devices: the plugin offers nothing and pods that ask for Neuron stay Pending"
        yield problem(seen, why, f"{action} (package aws-neuronx-dkms); see 'dmesg'")
        return ""
    if version is None:
        yield warning(
            "the Neuron driver is loaded, but its version cannot be read",
            "container numbering then falls back to host numbers, which a newer driver reads differently",
            "look at /sys/module/neuron/version; if it is right, give the plugin --numbering container",
        )
        return ""
    inf1 = facts.machine.inventory.device_name == "Inferentia"
    if not isinstance(pci, Unknown) and "Inferentia" in pci and version.at_least(*_NO_INF1):
        yield problem(
            f"Neuron driver {version.text} does not support the Inf1 chips of this machine",
            "it makes no devices for them",
            "install the last driver that does, 2.24.x",
        )
    for fixed_in, level, what, affected in _ISSUES:
        if version.at_least(*fixed_in) or (inf1 and fixed_in == _RUNTIME_2_32):  # that runtime does not know Inf1
            continue
        seen = f"Neuron driver {version.text} {what} (fixed in {'.'.join(map(str, fixed_in))})"
        if inf1 and fixed_in >= _NO_INF1:
            remedy = "no newer driver supports Inf1: drain the node and stop the plugin before the driver is unloaded"
            yield note(seen, affected, remedy)
        else:
            yield Finding(level=level, seen=seen, why=affected, action=_UPDATE)
    return f"Neuron driver {version.text} is loaded"


def check_devices(facts: Facts) -> Findings:
    """The driver lists all devices of the instance type and of the PCI bus."""
    machine, inventory, geometry = facts.machine, facts.machine.inventory, facts.machine.geometry
    if not facts.host.driver_loaded:
        raise NotCheckedError(NO_DEVICE)
    if geometry is None and not inventory.skipped:
        yield problem(
            f"no Neuron device: {inventory.absence}",
            "the plugin offers nothing, and pods that ask for Neuron stay Pending",
            "look for 'neuron' in 'dmesg'; two chips with one routing id make the driver unload itself: reboot then",
        )
    elif geometry:
        devices = plural(len(inventory.devices), f"{inventory.device_name or 'Neuron'} device")
        suffix = " each" if len(inventory.devices) > 1 else ""
        seen = f"{devices} with {plural(geometry.cores_per_device, 'logical core')}{suffix}"
        if machine.instance:
            yield ok(f"{seen}, {machine.instance.name}")
        else:
            yield note(
                f"{seen}; instance type {inventory.instance_type or '(this machine does not say)'} is not known here",
                "a missing device cannot be noticed, and the valid sets follow from the driver's links alone",
                "describe the type in a YAML file for --instance-types, or name it with --instance-type",
            )
    denied = [device for device in inventory.skipped if _is_denied(device.reason)]
    incomplete = [device for device in inventory.skipped if device.incomplete and device not in denied]
    unusable = [device for device in inventory.skipped if device not in denied and device not in incomplete]
    for text in joined_by_device(f"neuron{device.id}: {device.reason}" for device in denied):
        yield unchecked(Unknown(text, "run this as root"))
    for text in joined_by_device(f"neuron{device.id} is not complete: {device.reason}" for device in incomplete):
        yield warning(text, "offered as soon as the driver has made its attributes", "run this again in some seconds")
    for text in joined_by_device(f"neuron{device.id} cannot be used: {device.reason}" for device in unusable):
        yield problem(
            text,
            "not offered, and neither is any set that needs it",
            "look for 'neuron' in 'dmesg'; reload the driver or reboot",
        )
    if geometry and (missing := machine.missing):
        are = f"neuron{missing[0]} is" if len(missing) == 1 else f"devices {ranges(missing)} are"
        yield problem(
            f"{are} missing: {inventory.instance_type or 'the type'} has {geometry.device_count} devices",
            "no set with a missing device is offered; on most types the driver also prints no links then",
            _SEE_DMESG,
        )
    pci, listed = facts.host.pci, len(inventory.devices) + len(inventory.skipped)
    if not isinstance(pci, Unknown) and len(pci) > listed > 0:
        seen = f"the PCI bus has {plural(len(pci), 'Neuron chip')}, the driver lists {listed}"
        yield problem(seen, "the driver could not bring some of them up", _SEE_DMESG)
    return ""


def check_nodes(facts: Facts) -> Findings:
    """Each device has a node: a character device of this driver, which every user may read and write.

    A container runtime copies numbers and mode of the host's node, so a wrong node is wrong in every container.
    """
    simulated, numbers, files = facts.host.simulated, facts.host.numbers, known(facts.host.nodes)
    if not numbers and not files:
        raise NotCheckedError(NO_DEVICE)
    listed = [node for node in files if node.device in numbers]
    characters, dev = [node for node in listed if node.is_character], facts.machine.paths.dev
    trigger = "run 'udevadm trigger --subsystem-match=neuron_device'"
    if missing := set(numbers) - {node.device for node in listed}:
        yield problem(
            f"there is no {dev}/neuron{ranges(missing)}, though the driver lists the device",
            "containers with it fail with CreateContainerError, so it is advertised as unhealthy",
            f"{trigger}, or reload the driver",
        )
    if plain := [node.device for node in listed if not node.is_character and not simulated]:
        yield problem(
            f"{dev}/neuron{ranges(plain)} is no character device",
            "containers get a file that leads nowhere",
            f"remove the file, then {trigger}",
        )
    if stale := [node.device for node in characters if numbers[node.device] not in {None, node.numbers}]:
        yield problem(
            f"{dev}/neuron{ranges(stale)} has other numbers than the driver's sysfs",
            "it is left from before the driver was loaded again: containers get a node that leads nowhere",
            f"remove it, then {trigger}",
        )
    if closed := [node for node in listed if node.mode & _ALL_USERS != _ALL_USERS]:
        modes = ", ".join(sorted({f"{node.mode:04o}" for node in closed}))
        yield warning(
            f"{dev}/neuron{ranges(node.device for node in closed)} has mode {modes}, expected 0666",
            "containers get the same mode: there only root can open the device",
            "restore the driver's rule (/lib/udev/rules.d/neuron-udev.rules) and run 'udevadm trigger'; until then "
            "'chmod 0666' them",
        )
    if strays := [node.device for node in files if node.device not in numbers]:
        yield warning(
            f"{dev}/neuron{ranges(strays)} exists, but the driver lists no such device",
            "left over; the runtime on the host takes every such file for a device",
            "remove it, unless the driver is just being loaded",
        )
    kind = " (simulated)" if len(characters) == len(listed) else " (plain files: simulated)"
    return f"{plural(len(listed), 'device node')}, for every user to read and write{kind if simulated else ''}"


def check_sysfs(facts: Facts) -> Findings:
    """The driver's attributes can be read and make sense."""
    inventory = facts.machine.inventory
    if not inventory.devices:
        yield unchecked(NO_DEVICE)
    elsewhere = set(inventory.logical_core_size.problems)  # the check of logical cores has these
    alike: dict[tuple[str, ...], list[int]] = {(text,): [] for text in inventory.problems if text not in elsewhere}
    for device in inventory.devices:
        for text in device.problems:  # the same of several devices is one finding
            alike.setdefault(tuple(text.split(f"/neuron{device.id}")), []).append(device.id)
    for parts, ids in alike.items():
        text = f"/neuron{ranges(ids)}".join(parts)
        if _is_denied(text):
            yield unchecked(Unknown(text, "run this as root"))
        elif text.endswith("is assumed"):
            why = "this driver does not make the attribute; the plugin assumes the same"
            yield note(text, why, "nothing, unless the driver should: see the check 'driver'")
        else:
            yield warning(
                text,
                "the plugin cannot read this attribute either",
                "look for 'neuron' in 'dmesg'; a driver that is newer than this program may write it differently",
            )
    return f"all attributes of {plural(len(inventory.devices), 'device')} are read"


def _is_denied(text: str) -> bool:
    """Whether ``hardware`` says in this text that only root may read a file."""
    return "may not be read" in text


def check_logical_cores(facts: Facts) -> Findings:
    """The LNC in force is legal, and no other setting of it was ignored."""
    if not facts.machine.inventory.devices:
        yield unchecked(NO_DEVICE)
    lnc = facts.machine.inventory.logical_core_size
    why = f"{lnc.size} is used instead ({lnc.source}); a container that uses the other value fails at start"
    action = f"correct {facts.machine.paths.logical_nc_config}, or remove it, and restart the plugin"
    yield from (warning(text, why, action) for text in lnc.problems)
    return f"LNC {lnc.size} ({lnc.source})"


_REPLACE = "drain the node and replace the instance; the count is reset by a power cycle (stop and start)"
_REMEDIES: Mapping[Signal, str] = {
    Signal.RESET_FAILED: "end what uses the device and reset it again; else reload the driver or reboot",
    Signal.SRAM_ECC: _REPLACE,
    Signal.MEMORY_ECC: _REPLACE,
    Signal.REPAIRABLE_ECC: "let the node drain at a good moment and reboot it: that repairs the memory",
    Signal.COMPONENTS: "drain the node and replace the instance",
}


def check_disabled(facts: Facts) -> Findings:
    """The devices that an operator has taken out of service, by the Node's annotation or by the daemon."""
    disabled, by_daemon = facts.daemon.disabled, not isinstance(facts.daemon.disabled, Unknown)
    if isinstance(facts.cluster, ClusterFacts):
        text = facts.cluster.annotations.get(DISABLE_KEY, "")
        try:
            disabled = disabled_devices(text)
        except IdListError as error:
            yield warning(
                f"the node's annotation {DISABLE_KEY} reads {text[:60]!r}: {error}",
                "the plugin goes by the last value that it could read",
                f"correct it: kubectl annotate --overwrite node {facts.cluster.node_name} {DISABLE_KEY}=5,7",
            )
    ids = known(disabled)
    count = known(facts.geometry).device_count
    if unknown := [number for number in ids if number >= count]:
        yield warning(
            f"the node's annotation {DISABLE_KEY} names {named('device', unknown)}, this machine has 0 to {count - 1}",
            "these ids disable nothing; the others of the list hold",
            "correct the list, if another device was meant",
        )
    if listed := [number for number in ids if number < count]:
        yield note(
            f"{named('device', listed)} {'is' if len(listed) == 1 else 'are'} out of service",
            "an operator disabled them: no new pod gets them, pods that have them keep them",
            f"when they may be used again: neuron-plugin uncordon NODE {format_ids(listed)}",
        )
        if by_daemon and set(listed) != set(facts.machine.disabled):
            yield warning(
                f"the daemon has {ranges(facts.machine.disabled)} out of service, the annotation says {ranges(listed)}",
                "the daemon follows the annotation within a second where it can watch the node",
                "see the plugin's log for 'API server watch': it needs the rights to list and watch nodes",
            )
    return "every device is in service"


def check_health(facts: Facts) -> Findings:
    """No device has errors, by its attributes and by the daemon. Device nodes have a check of their own."""
    verdicts = facts.machine.verdicts
    if not verdicts:
        raise NotCheckedError(NO_DEVICE)
    for device, verdict in sorted(verdicts.items()):
        for symptom in verdict.findings:
            seen, remedy = f"neuron{device}: {symptom.text}", _REMEDIES.get(symptom.signal, "see 'dmesg'")
            if symptom.signal is Signal.NODE:
                continue
            if symptom.severity is Severity.WARNING:
                yield warning(seen, "the device is still offered", remedy)
            elif symptom.severity is not Severity.PASSING:
                yield problem(seen, "the device is not offered; pods that have it keep it", remedy)
            elif symptom.signal is Signal.RESETTING:
                why = "a container that opens it waits until the reset is over"
                yield note(seen, why, "if it lasts a minute, see 'dmesg'")
            else:
                why = "the device is not offered once this has lasted, as the health settings say"
                yield note(seen, why, "run this again later")
    daemons = known_or(facts.daemon.unhealthy, ())
    if unseen := {int(device) for device, verdict in verdicts.items() if verdict.healthy} & set(daemons):
        yield problem(
            f"the daemon reports {named('device', unseen)} unhealthy, and sysfs shows no error",
            "the daemon has seen an error that sysfs does not show now: in the kernel log, or a while ago",
            "see the node's events NeuronDeviceUnhealthy for the reason, and 'dmesg'; it ends by the health settings",
        )
    return f"{plural(len(verdicts), 'device')} without errors"
