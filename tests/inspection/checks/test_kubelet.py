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
    ask,
    facts_of,
    holding,
    is_fine,
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


def test_all_that_the_machine_has_is_fine(well: Facts) -> None:
    assert is_fine("registration", well)
    assert [finding.seen for finding in ask("registration", well)][-1] == f"{CORE}: 32 cores allocatable"


def test_what_is_held_under_another_name_is_rightly_missing(well: Facts) -> None:
    held = holding(well, ("train", "main", "neurondevice", "2"))
    assert is_fine("registration", offering(held, {CORE: cores(4, 5), ALIAS: devices(2)}))


def test_what_is_held_under_the_same_name_stays_allocatable(well: Facts) -> None:
    held = holding(well, ("train", "main", "neurondevice", "2"))
    finding = the_finding("registration", offering(held, {CORE: cores(4, 5), ALIAS: devices(2), DEVICE: devices(2)}))
    assert "neurondevice 2 could be offered and is not" in finding.seen


def test_what_could_be_offered_and_is_not_is_a_warning(well: Facts) -> None:
    finding = the_finding("registration", offering(well, {DEVICE: devices(3, 4)}))
    assert finding.level is Level.WARNING
    assert f"{DEVICE} 3-4 could be offered" in finding.seen


def test_without_knowing_the_holders_nothing_is_said_to_be_withheld(well: Facts) -> None:
    facts = with_kubelet(
        offering(well, {DEVICE: devices(3, 4)}), pods=Unknown("throttled"), recorded=Unknown("unreadable")
    )
    assert is_fine("registration", facts)


def test_sick_devices_that_are_still_offered_are_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, memory=1)
    facts = facts_of(node)
    assert is_fine("registration", facts)
    finding = the_finding("registration", offering(facts, {DEVICE: ("0", "1", "2", "3", "4", "5")}))
    assert finding.level is Level.WARNING
    assert f"{DEVICE} 1: 1 uncorrected memory error" in finding.seen


def test_a_sick_device_that_is_offered_because_a_pod_has_it_is_fine(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, memory=1)
    held = holding(facts_of(node), ("train", "main", "neurondevice", "1"))
    allocatable = {
        DEVICE: ("0", "1", "2", "3", "4", "5"),
        CORE: tuple(str(core) for core in range(12) if core // 2 != 1),
    }
    assert is_fine("registration", offering(held, allocatable))


@pytest.mark.parametrize("strange", ["16", "GPU-1", "99999999999"])
def test_ids_that_this_machine_does_not_have_are_a_problem(well: Facts, strange: str) -> None:
    finding = the_finding("registration", offering(well, {DEVICE: (*devices(), strange)}))
    assert finding.level is Level.PROBLEM
    assert f"offers {DEVICE} {strange}" in finding.seen


def test_a_served_resource_of_which_the_kubelet_has_nothing_is_a_problem(well: Facts) -> None:
    finding = the_finding("registration", offering(well, {CORE: ()}))
    assert finding.level is Level.PROBLEM
    assert "registration was lost" in finding.why


def test_a_resource_that_no_plugin_serves_is_a_note(well: Facts) -> None:
    served = tuple(socket for socket in well.kubelet.plugins if "neuroncore" not in socket.name)
    finding = the_finding("registration", with_kubelet(offering(well, {CORE: ()}), plugins=served))
    assert finding.level is Level.NOTE
    assert f"{CORE} is not offered" in finding.seen


def test_with_the_daemons_settings_it_is_known_whether_that_is_right(well: Facts) -> None:
    served = tuple(socket for socket in well.kubelet.plugins if "neuroncore" not in socket.name)
    facts = with_kubelet(offering(well, {CORE: ()}), plugins=served)
    left_out = replace(facts, daemon=Daemon(resources=frozenset({Resource.NEURON, Resource.NEURONDEVICE})))
    assert is_fine("registration", left_out)
    finding = the_finding("registration", replace(facts, daemon=Daemon(resources=frozenset(Resource))))
    assert finding.level is Level.PROBLEM
    assert f"{CORE} is not offered" in finding.seen


def test_no_resource_at_all_and_no_plugin_is_one_problem(well: Facts) -> None:
    facts = with_kubelet(offering(well, dict.fromkeys(Resource, ())), plugins=())
    assert the_finding("registration", facts).seen == "the kubelet offers no Neuron resource"


def test_a_node_that_counts_otherwise_than_its_kubelet_is_a_warning(well: Facts) -> None:
    facts = with_cluster(well, allocatable={"cpu": "1", CORE.value: "32", DEVICE.value: "12", ALIAS.value: "16"})
    finding = the_finding("registration", facts)
    assert finding.level is Level.WARNING
    assert f"{DEVICE} 12 (kubelet: 16)" in finding.seen


def test_a_node_without_any_status_is_not_compared(well: Facts) -> None:
    assert is_fine("registration", with_cluster(well, allocatable={}))


def test_a_kubelet_that_does_not_answer_is_not_checked(well: Facts) -> None:
    finding = the_finding("registration", with_kubelet(well, allocatable=Unknown("no answer", "wait")))
    assert not finding.checked


REFUSED = Unknown("may not be listed", "run this as root")


def test_a_kubelet_that_answers_is_fine(well: Facts) -> None:
    assert is_fine("kubelet", well)


def test_no_directory_is_a_problem_that_names_it(well: Facts) -> None:
    finding = the_finding("kubelet", with_kubelet(well, missing=True))
    assert finding.level is Level.PROBLEM
    assert str(DIRECTORY) in finding.seen
    assert "--kubelet-dir" in finding.action


def test_a_directory_that_may_not_be_listed_is_not_checked(well: Facts) -> None:
    facts = with_kubelet(well, unreadable=REFUSED)
    for name in ("kubelet", "vendor-plugin"):
        assert not the_finding(name, facts).checked


def test_no_registration_socket_is_a_problem(well: Facts) -> None:
    finding = the_finding("kubelet", with_kubelet(well, own_socket=None))
    assert finding.level is Level.PROBLEM
    assert "no kubelet.sock" in finding.seen


def test_a_registration_socket_that_is_not_served_is_a_problem(well: Facts) -> None:
    dead = SocketSeen(DIRECTORY / "kubelet.sock", served=False)
    finding = the_finding("kubelet", with_kubelet(well, own_socket=dead))
    assert finding.level is Level.PROBLEM
    assert "nothing answers" in finding.seen


def test_a_checkpoint_that_cannot_be_read_is_a_warning(well: Facts) -> None:
    finding = the_finding("kubelet", with_kubelet(well, recorded=Unknown("permission denied", "run this as root")))
    assert (finding.level, finding.action) == (Level.WARNING, "run this as root")
    assert "checkpoint cannot be read: permission denied" in finding.seen


def test_pod_resources_that_does_not_answer_is_a_warning(well: Facts) -> None:
    unknown = Unknown("no answer within 3 s")
    finding = the_finding("kubelet", with_kubelet(well, allocatable=unknown, pods=unknown))
    assert finding.level is Level.WARNING
    assert "no answer within 3 s" in finding.seen


CORE = Resource.NEURONCORE


def test_a_socket_for_each_resource_that_answers_is_fine(well: Facts) -> None:
    assert is_fine("plugin", well)
    assert len(ask("plugin", well)) == len(Resource)


def test_a_resource_that_is_left_out_is_fine(well: Facts) -> None:
    facts = with_kubelet(well, plugins=(SocketSeen(socket_path(CORE), served=True),))
    assert is_fine("plugin", facts)


def test_no_socket_at_all_is_a_problem(well: Facts) -> None:
    finding = the_finding("plugin", with_kubelet(well, plugins=()))
    assert finding.level is Level.PROBLEM
    assert "does not run here" in finding.seen


def test_before_there_is_a_device_no_socket_is_expected(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    assert the_finding("plugin", with_kubelet(facts_of(node), plugins=())).level is Level.NOTE


def test_the_vendors_plugin_alone_is_a_note(well: Facts) -> None:
    vendors = (SocketSeen(DIRECTORY / "neuron-devplugin.sock", served=True),)
    assert the_finding("plugin", with_kubelet(well, plugins=vendors)).level is Level.NOTE


def test_stale_sockets_are_harmless_beside_a_live_one(well: Facts) -> None:
    stale = SocketSeen(socket_path(CORE, "00000000"), served=False)
    assert is_fine("plugin", with_kubelet(well, plugins=(*well.kubelet.plugins, stale)))


def test_stale_sockets_alone_do_not_pass_for_a_plugin(well: Facts) -> None:
    stale = (SocketSeen(socket_path(CORE), served=False),)
    assert the_finding("plugin", with_kubelet(well, plugins=stale)).level is Level.PROBLEM


def test_two_plugins_for_one_resource_are_a_problem(well: Facts) -> None:
    second = SocketSeen(socket_path(CORE, "ffffffff"), served=True)
    finding = the_finding("plugin", with_kubelet(well, plugins=(*well.kubelet.plugins, second)))
    assert finding.level is Level.PROBLEM
    assert f"2 plugins serve {CORE}" in finding.seen


def test_a_plugin_that_accepts_and_does_not_answer_is_a_problem(well: Facts) -> None:
    hung = SocketSeen(socket_path(CORE), served=True, fault="no answer within 2 s")
    finding = the_finding("plugin", with_kubelet(well, plugins=(hung,)))
    assert finding.level is Level.PROBLEM
    assert "no answer within 2 s" in finding.seen


def test_without_a_kubelet_or_a_look_at_it_nothing_is_checked(well: Facts) -> None:
    for facts in (
        with_kubelet(well, missing=True, plugins=()),
        with_kubelet(well, unreadable=Unknown("no permission"), plugins=()),
    ):
        assert [finding.checked for finding in ask("plugin", facts)] == [False]


FILE = Path("/etc/neuron-plugin/config.yaml")


def going_by(facts: Facts, **daemon: object) -> Facts:
    return replace(facts, daemon=Daemon(**daemon))  # type: ignore[arg-type]  # fields by name


def test_a_configuration_that_can_be_used_is_fine(well: Facts) -> None:
    assert is_fine("configuration", going_by(well, file=FILE))


def test_one_with_which_the_daemon_does_not_start_is_a_problem(well: Facts) -> None:
    finding = the_finding("configuration", going_by(well, file=FILE, fault="f has the unknown key 'helth'"))
    assert finding.level is Level.PROBLEM
    assert "helth" in finding.seen


@pytest.mark.parametrize("daemon", [{}, {"file": FILE, "fault": Unknown("may not be read", "run this as root")}])
def test_one_that_is_not_known_is_not_checked(well: Facts, daemon: dict[str, object]) -> None:
    assert not the_finding("configuration", going_by(well, **daemon)).checked


def test_a_memory_that_is_not_known_is_a_note(well: Facts) -> None:
    machine = replace(well.machine, memory=Unknown("health.json is not there", "wait"))
    facts = replace(going_by(well, file=FILE), machine=machine)
    assert [finding.level for finding in ask("configuration", facts)] == [Level.NOTE]
    assert "are reported like new ones" in the_finding("configuration", facts).why


def test_a_daemon_that_hears_everything_is_fine(well: Facts) -> None:
    assert is_fine("sources", well)


def test_p70_a_source_that_does_not_work_is_a_warning_in_the_daemons_words(well: Facts) -> None:
    line = "kernel-log is not running: /dev/kmsg cannot be opened"
    finding = the_finding("sources", replace(well, daemon=Daemon(silent=(line,))))
    assert (finding.level, finding.seen) == (Level.WARNING, line)


def test_a_daemon_that_cannot_be_asked_is_not_checked(well: Facts) -> None:
    facts = replace(well, daemon=Daemon(silent=Unknown("no daemon answers", "run this in the plugin's pod")))
    assert not the_finding("sources", facts).checked


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


@pytest.mark.parametrize("text", ["", CLEAN, '{"default-runtime": "runc"}'])
def test_runtimes_without_the_hook_are_fine(well: Facts, text: str) -> None:
    assert is_fine("oci-hook", with_host(well, runtime_files={"/etc/containerd/config.toml": text}))


@pytest.mark.parametrize("text", [CONTAINERD, DOCKER, CRIO])
def test_a_default_runtime_with_the_hook_is_a_warning(well: Facts, text: str) -> None:
    facts = with_host(well, runtime_files={"/etc/some/config": text}, hook_files=(WRAPPER,))
    finding = the_finding("oci-hook", facts)
    assert finding.level is Level.WARNING
    assert finding.seen == "/etc/some/config makes every container use the OCI hook"
    assert "--no-visible-devices-env" in finding.action
    switched_off = replace(facts, daemon=replace(facts.daemon, visible_devices_env=False))
    assert "--no-visible-devices-env" not in the_finding("oci-hook", switched_off).action


def test_a_runtime_that_pods_have_to_choose_is_reported_as_such(well: Facts) -> None:
    facts = with_host(well, runtime_files={"/etc/some/config": NAMED}, hook_files=(WRAPPER,))
    assert "makes the runtime neuron use" in the_finding("oci-hook", facts).seen


def test_a_hook_that_no_runtime_uses_is_a_note(well: Facts) -> None:
    facts = with_host(well, runtime_files={"/etc/some/config": CLEAN}, hook_files=(WRAPPER,))
    assert the_finding("oci-hook", facts).level is Level.NOTE


@pytest.mark.parametrize(
    "files", [Unknown("in a pod", "give --root"), {"/etc/containerd/config.toml": Unknown("no permission", "as root")}]
)
def test_what_cannot_be_read_is_not_checked(well: Facts, files: object) -> None:
    assert not the_finding("oci-hook", with_host(well, runtime_files=files)).checked


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


NAMES = ["neuron-devplugin.sock", "neuroncore-devplugin.sock"]


def beside(facts: Facts, name: str, *, served: bool) -> Facts:
    return with_kubelet(facts, plugins=(*facts.kubelet.plugins, SocketSeen(DIRECTORY / name, served=served)))


def test_no_trace_of_it_is_fine(well: Facts) -> None:
    assert is_fine("vendor-plugin", well)


def test_other_device_plugins_are_ignored(well: Facts) -> None:
    assert is_fine("vendor-plugin", beside(well, "nvidia-gpu.sock", served=True))


@pytest.mark.parametrize("name", NAMES)
def test_beside_ours_it_is_a_problem_with_the_command_that_removes_it(well: Facts, name: str) -> None:
    finding = the_finding("vendor-plugin", beside(well, name, served=True))
    assert finding.level is Level.PROBLEM
    assert name in finding.seen
    assert "delete daemonset neuron-device-plugin-daemonset" in finding.action


def test_alone_it_is_a_note_and_what_it_left_is_nothing(well: Facts) -> None:
    alone = beside(with_kubelet(well, plugins=()), NAMES[0], served=True)
    assert the_finding("vendor-plugin", alone).level is Level.NOTE
    assert is_fine("vendor-plugin", beside(well, NAMES[0], served=False))


def test_where_the_kubelets_directory_is_closed_it_is_not_checked(well: Facts) -> None:
    findings = ask("vendor-plugin", with_kubelet(well, unreadable=Unknown("no permission")))
    assert [finding.checked for finding in findings] == [False]


@pytest.mark.parametrize(("with_us", "level"), [(True, Level.PROBLEM), (False, Level.NOTE)])
def test_the_dra_driver_is_a_problem_only_beside_us(well: Facts, with_us: bool, level: Level) -> None:  # noqa: FBT001 - a case
    path = Path("/var/lib/kubelet/plugins_registry/neuron.aws.com-reg.sock")
    ours = well.kubelet.plugins if with_us else ()
    finding = the_finding("vendor-plugin", with_kubelet(well, plugins=(*ours, SocketSeen(path, served=True))))
    assert finding.level is level
    assert "neuron.aws.com" in finding.seen


def test_where_drivers_register_out_of_sight_that_is_said(well: Facts) -> None:
    (finding,) = ask("vendor-plugin", with_kubelet(well, registry_seen=False))
    assert "could not be seen" in finding.seen
    (finding,) = ask("vendor-plugin", well)
    assert finding.seen == "neither the vendor's device plugin nor its DRA driver runs here"


def test_a_device_out_of_service_is_rightly_not_offered_unless_a_pod_has_it(well: Facts) -> None:
    facts = replace(well, machine=replace(well.machine, disabled=(3,)))
    without = {DEVICE: devices(3), ALIAS: devices(3), CORE: cores(6, 7)}
    assert is_fine("registration", offering(facts, without))
    offered = offering(facts, {**without, DEVICE: devices()})
    assert "still offers aws.amazon.com/neurondevice 3: disabled" in the_finding("registration", offered).seen
    assert is_fine("registration", holding(offered, ("train", "main", "neurondevice", "3")))


def test_what_a_pod_has_and_is_offered_under_another_name_is_a_warning(well: Facts) -> None:
    held = holding(well, ("train", "main", "neurondevice", "2"))
    finding = the_finding("registration", offering(held, {ALIAS: devices(2)}))
    assert finding.level is Level.WARNING
    assert f"still offers {CORE} 4-5: in use by pod default/train as {DEVICE}" in finding.seen


def test_cores_on_which_a_process_of_an_ended_pod_lives_are_rightly_not_offered(well: Facts) -> None:
    recorded = (CheckpointEntry(POD_UID, "main", DEVICE.value, frozenset({"2"}), {}, ()),)
    facts = offering(well, {DEVICE: devices(2), ALIAS: devices(2), CORE: cores(4, 5)})
    assert is_fine("registration", with_kubelet(facts, recorded=recorded, populated={POD_UID: True}))
    ended = with_kubelet(facts, recorded=recorded, populated={POD_UID: False})
    assert {finding.level for finding in ask("registration", ended)} == {Level.WARNING}, "nothing of it lives"
