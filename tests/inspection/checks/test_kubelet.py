from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection.facts import Daemon, Facts, SocketSeen
from neuron_plugin.inspection.findings import Level, Unknown
from neuron_plugin.kubelet import CheckpointEntry
from tests.inspection.cases import (
    DIRECTORY,
    POD_UID,
    Cases,
    Spoil,
    as_it_is,
    ask,
    cluster,
    expect,
    facts_of,
    holding,
    host,
    is_fine,
    kubelet,
    rows,
    socket_path,
    the_finding,
    with_cluster,
    with_host,
    with_kubelet,
)
from tests.inspection.doubles import MakeNode

CORE, DEVICE, ALIAS = Resource.NEURONCORE, Resource.NEURONDEVICE, Resource.NEURON


def offering(facts: Facts, changes: Mapping[Resource, tuple[str, ...]]) -> Facts:
    """The kubelet, and the node after it, offer other ids of some resources."""
    assert not isinstance(facts.kubelet.allocatable, Unknown)
    allocatable = {**facts.kubelet.allocatable, **{resource.value: ids for resource, ids in changes.items()}}
    counts = {"cpu": "1", **{name: str(len(ids)) for name, ids in allocatable.items()}}
    return with_cluster(with_kubelet(facts, allocatable=allocatable), allocatable=counts)


def devices(*without: int) -> tuple[str, ...]:
    return tuple(str(device) for device in range(16) if device not in without)


def cores(*without: int) -> tuple[str, ...]:
    return tuple(str(core) for core in range(32) if core not in without)


def served(name: str, *, instance: str = "0a1b2c3d", served: bool = True, fault: str = "") -> SocketSeen:
    """A socket of a resource by its short name, or another file of the kubelet's directory."""
    resource = next((one for one in Resource if one.short_name == name), None)
    return SocketSeen(socket_path(resource, instance) if resource else DIRECTORY / name, served=served, fault=fault)


def offers(changes: Mapping[Resource, tuple[str, ...]]) -> Spoil:
    return lambda well: offering(well, changes)


def beside_ours(*sockets: SocketSeen) -> Spoil:
    return lambda well: with_kubelet(well, plugins=(*well.kubelet.plugins, *sockets))


def without_core(facts: Facts, **daemon: object) -> Facts:
    """No plugin serves cores, and the kubelet has none."""
    sockets = tuple(socket for socket in facts.kubelet.plugins if "neuroncore" not in socket.name)
    found = with_kubelet(offering(facts, {CORE: ()}), plugins=sockets)
    return going_by(found, **daemon) if daemon else found


def going_by(facts: Facts, **daemon: object) -> Facts:
    return replace(facts, daemon=Daemon(**daemon))  # type: ignore[arg-type]  # fields by name


def daemon(**said: object) -> Spoil:
    return lambda well: going_by(well, **said)


def disabled(facts: Facts) -> Facts:
    return replace(facts, machine=replace(facts.machine, disabled=(3,)))


WRAPPER = "/opt/aws/neuron/bin/oci_neuron_hook_wrapper.sh"
CONTAINERD = f"""
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "neuron"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.neuron.options]
    BinaryName = "{WRAPPER}"
"""
DOCKER = f'{{"default-runtime": "neuron", "runtimes": {{"neuron": {{"path": "{WRAPPER}"}}}}}}'
CRIO = f'[crio.runtime]\ndefault_runtime = "neuron"\n[crio.runtime.runtimes.neuron]\nruntime_path = "{WRAPPER}"\n'
NAMED = CONTAINERD.replace('default_runtime_name = "neuron"', 'default_runtime_name = "runc"')
CLEAN = 'default_runtime_name = "runc"\n# BinaryName = "/opt/aws/neuron/bin/oci_neuron_hook_wrapper.sh"\n'
FILE = Path("/etc/neuron-plugin/config.yaml")
CLOSED, AWAY = Unknown("may not be listed", "run this as root"), Unknown("no answer within 3 s", "wait")
HELD = ("train", "main", "neurondevice", "2")
REST = {CORE: cores(4, 5), ALIAS: devices(2)}
"""What is left when a pod has device 2 by its name neurondevice."""
OFF = {DEVICE: devices(3), ALIAS: devices(3), CORE: cores(6, 7)}
"""What is left when device 3 is disabled."""
VENDOR, VENDORS_CORE = "neuron-devplugin.sock", "neuroncore-devplugin.sock"
VENDOR_DRIVER = SocketSeen(Path("/var/lib/kubelet/plugins_registry/neuron.aws.com-reg.sock"), served=True)
SILENT = "kernel-log is not running: /dev/kmsg cannot be opened"
CASES: Cases = {
    "registration": {
        "held under another name": (lambda well: offering(holding(well, HELD), REST), "ok"),
        "held under the same name, and withheld": (
            lambda well: offering(holding(well, HELD), {**REST, DEVICE: devices(2)}),
            "warning: neurondevice 2 could be offered and is not",
        ),
        "withheld": (offers({DEVICE: devices(3, 4)}), f"warning: {DEVICE} 3-4 could be offered"),
        "withheld, and the holders are not known": (
            lambda well: with_kubelet(offering(well, {DEVICE: devices(3, 4)}), pods=AWAY, recorded=AWAY),
            "ok",
        ),
        "held, and offered under another name": (
            lambda well: offering(holding(well, HELD), {ALIAS: devices(2)}),
            f"warning: still offers {CORE} 4-5: in use by pod default/train as {DEVICE}",
        ),
        "out of service": (lambda well: offering(disabled(well), OFF), "ok"),
        "out of service, and offered": (
            lambda well: offering(disabled(well), {**OFF, DEVICE: devices()}),
            "warning: still offers aws.amazon.com/neurondevice 3: disabled",
        ),
        "out of service, and a pod has it": (
            lambda well: holding(
                offering(disabled(well), {**OFF, DEVICE: devices()}), ("train", "main", "neurondevice", "3")
            ),
            "ok",
        ),
        **{
            f"an id that this machine does not have: {strange}": (
                offers({DEVICE: (*devices(), strange)}),
                f"problem: offers {DEVICE} {strange}",
            )
            for strange in ("16", "GPU-1", "99999999999")
        },
        "served, and the kubelet has nothing of it": (offers({CORE: ()}), "problem: registration was lost"),
        "a resource that no plugin serves": (without_core, f"note: {CORE} is not offered"),
        "one that the daemon leaves out": (lambda well: without_core(well, resources=frozenset({ALIAS, DEVICE})), "ok"),
        "one that the daemon is set to serve": (
            lambda well: without_core(well, resources=frozenset(Resource)),
            f"problem: {CORE} is not offered",
        ),
        "no resource at all and no plugin": (
            lambda well: with_kubelet(offering(well, dict.fromkeys(Resource, ())), plugins=()),
            "problem: the kubelet offers no Neuron resource",
        ),
        "a node that counts otherwise than its kubelet": (
            cluster(allocatable={"cpu": "1", CORE.value: "32", DEVICE.value: "12", ALIAS.value: "16"}),
            f"warning: {DEVICE} 12 (kubelet: 16)",
        ),
        "a node without any status": (cluster(allocatable={}), "ok"),
        "a kubelet that says nothing": (kubelet(allocatable=AWAY), "unchecked: no"),
    },
    "kubelet": {
        "a kubelet that answers": (as_it_is, "ok"),
        "no directory": (kubelet(missing=True), f"problem: {DIRECTORY} ~ --kubelet-dir"),
        "a directory that may not be listed": (kubelet(unreadable=CLOSED), "unchecked: may not be listed"),
        "no registration socket": (kubelet(own_socket=None), "problem: no kubelet.sock"),
        "one that is not served": (
            kubelet(own_socket=served("kubelet.sock", served=False)),
            "problem: nothing answers",
        ),
        "a checkpoint that cannot be read": (
            kubelet(recorded=Unknown("permission denied", "run this as root")),
            "warning: checkpoint cannot be read: permission denied ~ run this as root",
        ),
        "no answer of PodResources": (kubelet(allocatable=AWAY, pods=AWAY), "warning: no answer within 3 s"),
    },
    "plugin": {
        "a resource that is left out": (kubelet(plugins=(served("neuroncore"),)), "ok"),
        "no socket": (kubelet(plugins=()), "problem: does not run here"),
        "the vendor's plugin alone": (kubelet(plugins=(served(VENDOR),)), "note: the vendor's device plugin does"),
        "a stale socket beside a live one": (
            beside_ours(served("neuroncore", instance="00000000", served=False)),
            "ok",
        ),
        "a stale socket alone": (
            kubelet(plugins=(served("neuroncore", served=False),)),
            "problem: none of its sockets is served",
        ),
        "two plugins": (beside_ours(served("neuroncore", instance="ffffffff")), f"problem: 2 plugins serve {CORE}"),
        "one that accepts and does not answer": (
            kubelet(plugins=(served("neuroncore", fault="no answer within 2 s"),)),
            "problem: no answer within 2 s",
        ),
        "no kubelet for a plugin": (kubelet(missing=True, plugins=()), "unchecked: no"),
        "none that can be looked at": (kubelet(unreadable=CLOSED, plugins=()), "unchecked: may not be listed"),
    },
    "configuration": {
        "a configuration that can be used": (daemon(file=FILE), "ok"),
        "one with which the daemon does not start": (
            daemon(file=FILE, fault="f has the unknown key 'helth'"),
            "problem: helth",
        ),
        "no configuration": (going_by, "unchecked: defaults are assumed"),
        "one that may not be read": (daemon(file=FILE, fault=CLOSED), "unchecked: may not be listed"),
        "no memory of old errors": (
            lambda well: replace(
                going_by(well, file=FILE),
                machine=replace(well.machine, memory=Unknown("health.json is not there", "wait")),
            ),
            "note: are reported like new ones",
        ),
    },
    "sources": {
        "a daemon that hears everything": (as_it_is, "ok"),
        "p70 a source that does not work": (daemon(silent=(SILENT,)), f"warning: {SILENT}"),
        "a daemon that cannot be asked": (daemon(silent=AWAY), "unchecked: no answer"),
    },
    "oci-hook": {
        "runtimes without the hook": (host(runtime_files={"f": ""}), "ok"),
        "one that only mentions it": (host(runtime_files={"f": CLEAN}), "ok"),
        "a runtime that pods have to choose": (
            host(runtime_files={"f": NAMED}, hook_files=(WRAPPER,)),
            "warning: f makes the runtime neuron use",
        ),
        "a hook that no runtime uses": (
            host(runtime_files={"f": CLEAN}, hook_files=(WRAPPER,)),
            "note: no runtime uses it",
        ),
        "no file can be read": (host(runtime_files=CLOSED), "unchecked: may not be"),
        "one of them cannot": (host(runtime_files={"f": CLOSED}), "unchecked: f: may"),
    },
    "vendor-plugin": {
        "another vendor's plugin": (beside_ours(served("nvidia-gpu.sock")), "ok"),
        **{
            f"{name} beside ours": (
                beside_ours(served(name)),
                f"problem: {name} ~ delete daemonset neuron-device-plugin-daemonset",
            )
            for name in (VENDOR, VENDORS_CORE)
        },
        "it alone": (kubelet(plugins=(served(VENDOR),)), "note: serves this node"),
        "what it left": (beside_ours(served(VENDOR, served=False)), "ok"),
        "a directory that is closed": (kubelet(unreadable=CLOSED), "unchecked: may not be listed"),
        "the DRA driver beside us": (beside_ours(VENDOR_DRIVER), "problem: neuron.aws.com"),
        "the DRA driver alone": (kubelet(plugins=(VENDOR_DRIVER,)), "note: neuron.aws.com"),
    },
}


@pytest.mark.parametrize(("name", "spoil", "expected"), rows(CASES))
def test_what_is_found(well: Facts, name: str, spoil: Spoil, expected: str) -> None:
    expect(name, spoil(well), expected)


def test_all_that_the_machine_has_is_fine(well: Facts) -> None:
    assert is_fine("registration", well)
    assert [finding.seen for finding in ask("registration", well)][-1] == f"{CORE}: 32 cores allocatable"


def test_sick_devices_that_are_still_offered_are_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, memory=1)
    facts = facts_of(node)
    assert is_fine("registration", facts)
    offered = offering(facts, {DEVICE: ("0", "1", "2", "3", "4", "5")})
    expect("registration", offered, f"warning: {DEVICE} 1: 1 uncorrected memory error")


def test_a_sick_device_that_is_offered_because_a_pod_has_it_is_fine(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, memory=1)
    held = holding(facts_of(node), ("train", "main", "neurondevice", "1"))
    allocatable = {
        DEVICE: ("0", "1", "2", "3", "4", "5"),
        CORE: tuple(str(core) for core in range(12) if core // 2 != 1),
    }
    assert is_fine("registration", offering(held, allocatable))


def test_a_socket_for_each_resource_that_answers_is_fine(well: Facts) -> None:
    assert is_fine("plugin", well)
    assert len(ask("plugin", well)) == len(Resource)


def test_before_there_is_a_device_no_socket_is_expected(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    expect("plugin", with_kubelet(facts_of(node), plugins=()), "note: ")


@pytest.mark.parametrize("text", [CONTAINERD, DOCKER, CRIO])
def test_a_default_runtime_with_the_hook_is_a_warning(well: Facts, text: str) -> None:
    facts = with_host(well, runtime_files={"/etc/some/config": text}, hook_files=(WRAPPER,))
    finding = the_finding("oci-hook", facts)
    assert finding.level is Level.WARNING
    assert finding.seen == "/etc/some/config makes every container use the OCI hook"
    assert "--no-visible-devices-env" in finding.action
    switched_off = replace(facts, daemon=replace(facts.daemon, visible_devices_env=False))
    assert "--no-visible-devices-env" not in the_finding("oci-hook", switched_off).action


@pytest.mark.parametrize(
    "files", [Unknown("a pod does not see it", "on the node"), {"/etc/containerd": Unknown("no permission", "as root")}]
)
def test_a_hook_whose_use_is_out_of_sight_is_not_called_unused(well: Facts, files: object) -> None:
    facts = with_host(well, runtime_files=files, hook_files=(WRAPPER,))
    found = ask("oci-hook", facts)
    assert found[1].level is Level.WARNING, "the daemon sets the variable that it reads"
    assert "--no-visible-devices-env" in found[1].action
    off = replace(facts, daemon=replace(facts.daemon, visible_devices_env=False))
    assert ask("oci-hook", off)[1].level is Level.NOTE
    assert not found[0].checked
    assert found[1].seen == f"the OCI hook is installed ({WRAPPER}); whether a runtime uses it cannot be seen from here"


def test_where_drivers_register_out_of_sight_that_is_said(well: Facts) -> None:
    (finding,) = ask("vendor-plugin", with_kubelet(well, registry_seen=False))
    assert "could not be seen" in finding.seen
    (finding,) = ask("vendor-plugin", well)
    assert finding.seen == "neither the vendor's device plugin nor its DRA driver runs here"


def test_cores_on_which_a_process_of_an_ended_pod_lives_are_rightly_not_offered(well: Facts) -> None:
    recorded = (CheckpointEntry(POD_UID, "main", DEVICE.value, frozenset({"2"}), {}, ()),)
    facts = offering(well, {DEVICE: devices(2), ALIAS: devices(2), CORE: cores(4, 5)})
    assert is_fine("registration", with_kubelet(facts, recorded=recorded, populated={POD_UID: True}))
    ended = with_kubelet(facts, recorded=recorded, populated={POD_UID: False})
    assert {finding.level for finding in ask("registration", ended)} == {Level.WARNING}, "nothing of it lives"
