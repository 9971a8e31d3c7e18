from __future__ import annotations

import pytest

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import ask, is_fine, the_finding, with_host

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
