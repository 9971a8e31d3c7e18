from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.inspection.facts import Facts, SocketSeen
from neuron_plugin.inspection.findings import Level
from neuron_plugin.inspection.unknown import Unknown
from tests.inspection.cases import DIRECTORY, ask, is_fine, the_finding, with_host, with_kubelet

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


def test_a_runtime_that_pods_have_to_choose_is_told_as_such(well: Facts) -> None:
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
    told = [finding.seen for finding in ask("oci-hook", facts)]
    assert told == [
        "not checked: a pod does not see it",
        f"the OCI hook is installed ({WRAPPER}); whether a runtime uses it cannot be seen from here",
    ]


NAMES = ["neuron-devplugin.sock", "neuroncore-devplugin.sock"]


def beside(facts: Facts, name: str, *, served: bool) -> Facts:
    return with_kubelet(facts, plugins=(*facts.kubelet.plugins, SocketSeen(DIRECTORY / name, served=served)))


def test_no_trace_of_it_is_fine(well: Facts) -> None:
    assert is_fine("vendor-plugin", well)


def test_other_device_plugins_are_nobodys_business_here(well: Facts) -> None:
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
    findings = ask("vendor-plugin", with_kubelet(well, trouble=Unknown("no permission")))
    assert [finding.checked for finding in findings] == [False]


SOCKETS = [
    Path("/var/lib/kubelet/plugins_registry/neuron.aws.com-reg.sock"),
    Path("/var/lib/kubelet/plugins/neuron.aws.com/dra.sock"),
]


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize(
    ("served", "with_us", "level"), [(True, True, Level.PROBLEM), (True, False, Level.NOTE), (False, True, Level.NOTE)]
)
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
