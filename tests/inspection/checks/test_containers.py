from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.inspection.facts import Facts, SocketSeen
from neuron_plugin.inspection.findings import Level
from neuron_plugin.inspection.text import Unknown
from neuron_plugin.simulation import write_node
from tests.inspection.cases import (
    DIRECTORY,
    POD_UID,
    api_pod,
    ask,
    facts_of,
    holding,
    is_fine,
    the_finding,
    user,
    with_cluster,
    with_host,
    with_kubelet,
    with_users,
)
from tests.inspection.doubles import MakeNode

STATIC_UID = "0123456789abcdef0123456789abcdef"


def held(well: Facts) -> Facts:
    pod = api_pod("train", {"main": {"neurondevice": 1}}, {})
    return with_cluster(holding(well, ("train", "main", "neurondevice", "2")), pods=(pod,))


def test_no_process_is_fine(well: Facts) -> None:
    assert is_fine("processes", well)
    assert ask("processes", well)[0].seen == "no process has a device open"


def test_a_process_of_the_pod_that_holds_the_device_is_fine(well: Facts) -> None:
    assert is_fine("processes", with_users(held(well), user(2)))
    assert is_fine("processes", with_users(held(well), user(2), user(2)))


def test_a_static_pods_process_is_known_by_the_uid_of_its_file(well: Facts) -> None:
    facts = held(well)
    static = replace(api_pod("static", {"main": {"neurondevice": 1}}, {}), static_uid=STATIC_UID)
    assert is_fine("processes", with_users(with_cluster(facts, pods=(static,)), user(2, pod_uid=STATIC_UID)))


def test_a_process_outside_of_pods_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(held(well), user(2, 3, pod_uid="")))
    assert finding.level is Level.WARNING
    assert "process 4711 (python train.py) has devices 2-3 open and belongs to no pod" in finding.seen
    assert "kill 4711" in finding.action


def test_a_process_without_a_name_is_reported_by_its_number(well: Facts) -> None:
    facts = with_users(held(well), replace(user(2, pod_uid=""), command=""))
    assert "process 4711 (its name is not known)" in the_finding("processes", facts).seen


def test_a_process_of_a_pod_that_has_ended_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(with_cluster(held(well), pods=()), user(2)))
    assert finding.level is Level.WARNING
    assert f"of pod {POD_UID}, which has ended" in finding.seen


def test_a_device_that_the_kubelet_gave_to_no_pod_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(held(well), user(2, 7)))
    assert finding.level is Level.WARNING
    assert "device 7 open, which the kubelet gave to no pod" in finding.seen


def test_without_an_api_server_every_pod_passes_for_alive(well: Facts) -> None:
    facts = replace(held(well), cluster=Unknown("no API server is known"))
    assert is_fine("processes", with_users(facts, user(2)))


def test_what_cannot_be_seen_is_said_beside_what_is(well: Facts) -> None:
    findings = ask(
        "processes", with_users(held(well), user(2, pod_uid=""), hidden=Unknown("hidden", "run this as root"))
    )
    assert [(finding.level, finding.checked) for finding in findings] == [(Level.NOTE, False), (Level.WARNING, True)]
    (finding,) = ask("processes", with_users(well, hidden=Unknown("hidden", "run this as root")))
    assert not finding.checked


def test_without_proc_it_is_not_checked(well: Facts) -> None:
    assert not the_finding("processes", replace(well, users=Unknown("there is no /proc", "mount it"))).checked


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The last driver that knows host numbers only."""
    root = tmp_path_factory.mktemp("old") / "node"
    return facts_of(write_node(root, "inf2.24xlarge", driver_version="2.12.13.0", usage_counters=False))


def test_the_way_follows_the_driver(well: Facts, old: Facts) -> None:
    assert "from /dev/neuron0 on" in ask("numbering", well)[0].seen
    assert "by their host numbers" in ask("numbering", old)[0].seen


@pytest.mark.parametrize("inside", [{0: 5}, {0: 4, 1: 5, 2: 6, 3: 7}, {device: device for device in range(16)}])
def test_renumbered_containers_are_fine_with_a_newer_driver(well: Facts, inside: Mapping[int, int]) -> None:
    assert is_fine("numbering", with_users(well, user(*inside.values(), inside=inside)))


@pytest.mark.parametrize("inside", [{5: 5}, {0: 5, 1: 4}, {1: 4, 2: 5}, {device: 15 - device for device in range(16)}])
def test_host_numbers_are_a_problem_with_a_newer_driver(well: Facts, inside: Mapping[int, int]) -> None:
    finding = the_finding("numbering", with_users(well, user(*inside.values(), inside=inside)))
    assert finding.level is Level.PROBLEM
    assert "python train.py" in finding.seen
    assert "--numbering to auto" in finding.action


def test_host_numbers_are_right_with_an_older_driver(old: Facts) -> None:
    assert is_fine("numbering", with_users(old, user(3, inside={3: 3})))
    assert the_finding("numbering", with_users(old, user(3, inside={0: 3}))).level is Level.PROBLEM


@pytest.mark.parametrize(("pod_uid", "inside"), [("", {5: 5}), ("some-pod", None), ("some-pod", {})])
def test_processes_of_the_host_and_unseen_ones_are_passed_over(
    well: Facts, pod_uid: str, inside: Mapping[int, int] | None
) -> None:
    assert is_fine("numbering", with_users(well, user(5, pod_uid=pod_uid, inside=inside)))


def test_without_a_version_it_is_not_checked(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    Path(node.paths.sysfs / "module/neuron/version").unlink()
    assert not the_finding("numbering", facts_of(node)).checked


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
    assert "--visible-devices-env" in finding.action


def test_a_runtime_that_pods_have_to_choose_is_reported_as_such(well: Facts) -> None:
    facts = with_host(well, runtime_files={"/etc/some/config": NAMED}, hook_files=(WRAPPER,))
    assert "makes the runtime neuron use" in the_finding("oci-hook", facts).seen


def test_a_runtime_whose_hook_is_gone_is_a_problem(well: Facts) -> None:
    finding = the_finding("oci-hook", with_host(well, runtime_files={"/etc/some/config": CONTAINERD}))
    assert finding.level is Level.PROBLEM
    assert f"names {WRAPPER}, which is not there" in finding.seen


def test_a_hook_that_no_runtime_uses_is_a_note(well: Facts) -> None:
    facts = with_host(well, runtime_files={"/etc/some/config": CLEAN}, hook_files=(WRAPPER,))
    assert the_finding("oci-hook", facts).level is Level.NOTE


@pytest.mark.parametrize(
    "files", [Unknown("in a pod", "give --root"), {"/etc/containerd/config.toml": Unknown("no permission", "as root")}]
)
def test_what_cannot_be_read_is_not_checked(well: Facts, files: object) -> None:
    assert not the_finding("oci-hook", with_host(well, runtime_files=files)).checked


def test_a_hook_whose_use_is_out_of_sight_is_not_called_unused(well: Facts) -> None:
    facts = with_host(well, runtime_files=Unknown("a pod does not see it", "on the node"), hook_files=(WRAPPER,))
    said = [finding.seen for finding in ask("oci-hook", facts)]
    assert said == [
        "not checked: a pod does not see it",
        f"the OCI hook is installed ({WRAPPER}); whether a runtime uses it cannot be seen from here",
    ]


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


SOCKETS = [
    Path("/var/lib/kubelet/plugins_registry/neuron.aws.com-reg.sock"),
    Path("/var/lib/kubelet/plugins/neuron.aws.com/dra.sock"),
]


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize(("served", "with_us", "level"), [(True, True, Level.PROBLEM), (True, False, Level.NOTE)])
def test_the_dra_driver_is_a_problem_only_beside_us(
    well: Facts,
    path: Path,
    served: bool,  # noqa: FBT001 - a case
    with_us: bool,  # noqa: FBT001 - a case
    level: Level,
) -> None:
    ours = well.kubelet.plugins if with_us else ()
    finding = the_finding("dra-driver", with_kubelet(well, plugins=(*ours, SocketSeen(path, served=served))))
    assert finding.level is level
    assert "neuron.aws.com" in finding.seen


def test_where_drivers_register_out_of_sight_it_is_not_checked(well: Facts) -> None:
    finding = the_finding("dra-driver", with_kubelet(well, drivers_seen=False))
    assert not finding.checked
    assert "/var/lib/kubelet/plugins_registry" in finding.seen


def test_without_it_all_is_fine(well: Facts) -> None:
    assert is_fine("dra-driver", well)
