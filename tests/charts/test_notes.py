"""The notes after an installation name what was installed."""

from __future__ import annotations

import json
import re

import pytest

from neuron_plugin.cli.main import main
from tests.charts.manifests import NAMES, embedded, manifests, of_each, of_kind, plugin_of
from tests.charts.rendering import VALUES, Manifest, read, render_notes


def notes(name: str) -> str:
    return render_notes(read(VALUES / f"{name}.yaml"))


@of_each(NAMES)
def test_every_object_in_a_command_exists(name: str) -> None:
    installed = {(found["kind"].lower(), found["metadata"]["name"]) for found in manifests(name)}
    named = set(re.findall(r"(daemonset|deployment|service)/([\w-]+)", notes(name)))
    named |= set(re.findall(r"get (configmap) ([\w-]+)", notes(name)))
    assert named <= installed
    secrets = set(re.findall(r"get secret ([\w-]+)", notes(name)))
    if of_kind(name, "Secret"):
        assert secrets <= set(of_kind(name, "Secret"))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_ours_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = re.findall(r"-- neuron-plugin ([a-z-]+)", notes(name))
    assert ("doctor" in named) == bool(of_kind(name, "DaemonSet"))
    assert ("explain" in named) == bool(of_kind(name, "Service"))
    for command in named:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out


@of_each(NAMES)
def test_the_notes_say_how_to_see_that_it_is_safe(name: str) -> None:
    text = notes(name)
    assert ("securityContext.privileged" in text) == bool(of_kind(name, "DaemonSet"))
    policies = bool(of_kind(name, "DaemonSet")) and bool(of_kind(name, "ValidatingAdmissionPolicyBinding"))
    assert ("validatingadmissionpolicybindings" in text) == policies


@of_each(NAMES)
def test_the_notes_speak_of_what_is_installed_only(name: str) -> None:
    text = notes(name)
    assert ("Device plugin:" in text) == bool(of_count(name))
    assert ("DRA driver:" in text) == bool(of_kind(name, "DeviceClass"))
    assert ("Extender:" in text) == bool(of_kind(name, "Service"))
    assert ("Second scheduler:" in text) == (
        "KubeSchedulerConfiguration" in str(manifests(name)) and "Default scheduler:" not in text
    )


def test_the_notes_say_which_scheduler_name_pods_write() -> None:
    assert "schedulerName: neuron-scheduler\n" in notes("second-scheduler")
    assert "schedulerName: my-scheduler\n" in notes("vendor-migration")


@of_each(NAMES)
def test_the_first_pod_of_the_notes_asks_as_this_cluster_offers(name: str) -> None:
    commands = re.findall(r"kubectl run first-pod .*--overrides='(.*)'", notes(name))
    assert bool(commands) == bool(of_count(name))
    for command in commands:
        spec = json.loads(command)["spec"]
        profiles = {each["schedulerName"] for each in second_scheduler(name)}
        assert {spec.get("schedulerName")} == (profiles or {None})
        settings = embedded(name, plugin_of(name), "config.yaml")
        (limit,) = spec["containers"][0]["resources"]["limits"]
        assert limit.removeprefix("aws.amazon.com/") in settings.get("resources", ["neuroncore"])


def of_count(name: str) -> set[str]:
    """The DaemonSets whose nodes offer devices by count."""
    return {each for each in of_kind(name, "DaemonSet") if not each.endswith("-dra")}


def second_scheduler(name: str) -> list[Manifest]:
    """The profiles of the second scheduler, if there is one."""
    maps = [each for each in of_kind(name, "ConfigMap") if each.endswith("-scheduler") and "default" not in each]
    return [profile for each in maps for profile in embedded(name, each, "config.yaml")["profiles"]]


@of_each(NAMES)
def test_the_notes_lead_to_the_live_page_where_it_is_served(name: str) -> None:
    extenders = [each for each in of_kind(name, "ConfigMap") if each.endswith("-extender")]
    served = [each for each in extenders if embedded(name, each, "config.yaml").get("ui")]
    assert ("http://127.0.0.1:12346/ui/" in notes(name)) == bool(served)
    assert ("scheduler.extender.settings.ui=true" in notes(name)) == (len(extenders) > len(served))


def test_files_for_the_control_plane_go_where_its_configuration_looks() -> None:
    assert "/etc/kubernetes/neuron-plugin/kube-scheduler-config.yaml" in notes("default-scheduler")
    assert "/var/lib/kube-scheduler/neuron-plugin/kube-scheduler-config.yaml" in notes("kops")


def test_the_notes_say_what_to_do_when_the_service_has_no_fixed_address() -> None:
    values = {"scheduler": {"enabled": True, "defaultScheduler": {"enabled": True}}}
    assert "kubectl -n kube-system delete service neuron-plugin-extender\n" in render_notes(values)
    assert "delete service" not in notes("default-scheduler")
