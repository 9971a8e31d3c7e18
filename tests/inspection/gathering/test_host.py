from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuron_plugin.hardware import MachinePaths
from neuron_plugin.inspection.facts import PciFunction
from neuron_plugin.inspection.gathering.host import gather_host
from neuron_plugin.inspection.unknown import Unknown
from tests.inspection.doubles import MakeNode

PROC_DEVICES = "Character devices:\n  1 mem\n243 neuron\n246 neuron-look-alike\n\nBlock devices:\n  7 neuron\n"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_simulated_machine_is_known_as_one(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    host = gather_host(node.root, node.paths, in_pod=False)
    assert host.simulated
    assert host.driver_loaded
    assert host.numbers == {device: (node.description.major, device) for device in range(6)}
    assert not isinstance(host.nodes, Unknown)
    assert [(each.device, each.is_character, each.mode) for each in host.nodes] == [
        (device, False, 0o666) for device in range(6)
    ]
    assert isinstance(host.major, Unknown)
    assert isinstance(host.pci, Unknown)
    assert (host.hook_files, host.runtime_files) == ((), {})


def test_an_empty_machine_is_no_error(tmp_path: Path) -> None:
    host = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False)
    assert not host.driver_loaded
    assert not host.simulated
    assert isinstance(host.nodes, Unknown)
    assert "cannot be listed" in host.nodes.why


def test_the_kernels_major_is_that_of_the_character_devices(tmp_path: Path) -> None:
    write(tmp_path / "proc/devices", PROC_DEVICES)
    assert gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).major == 243
    write(tmp_path / "proc/devices", PROC_DEVICES.replace("243 neuron\n", ""))
    assert gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).major is None


def test_neuron_chips_are_picked_from_the_pci_bus(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    for address, vendor, device in (
        ("0000:10:1c.0", "0x1d0f", "0x7164"),
        ("0000:00:03.0", "0x1d0f", "0xec20"),
        ("0000:00:04.0", "0x10de", "0x7164"),
        ("0000:90:1b.0", "0x1d0f", "0x7064"),
    ):
        write(bus / address / "vendor", f"{vendor}\n")
        write(bus / address / "device", f"{device}\n")
    pci = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).pci
    assert pci == (PciFunction("0000:10:1c.0", "Trainium1"), PciFunction("0000:90:1b.0", "Inferentia"))


def test_nodes_are_told_as_they_are(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    write(dev / "neuron0").chmod(0o600)
    (dev / "neuron1").symlink_to("/nowhere")
    (dev / "neuron2").symlink_to("/dev/null")
    write(dev / "ng0n1")
    nodes = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).nodes
    assert not isinstance(nodes, Unknown)
    assert [(node.device, node.is_character, node.numbers) for node in nodes] == [
        (0, False, (0, 0)),
        (2, True, (1, 3)),
    ]
    assert nodes[0].mode == 0o600


def test_a_number_that_sysfs_does_not_tell_leaves_the_device_listed(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.remove_attribute(0, "dev")
    assert gather_host(node.root, node.paths, in_pod=False).numbers == {0: None}


def test_leftovers_of_the_vendors_are_found(tmp_path: Path) -> None:
    wrapper = write(tmp_path / "opt/aws/neuron/bin/oci_neuron_hook_wrapper.sh")
    write(tmp_path / "opt/aws/neuron/bin/neuron-ls")
    write(tmp_path / "opt/aws/neuron/logical_nc_config")
    main = write(tmp_path / "etc/containerd/config.toml", "version = 3\n")
    more = write(tmp_path / "etc/containerd/conf.d/neuron.toml", "x = 1\n")
    host = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False)
    assert host.hook_files == (str(wrapper),)
    assert host.runtime_files == {str(main): "version = 3\n", str(more): "x = 1\n"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_configuration_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    write(tmp_path / "etc/docker/daemon.json", "{}").chmod(0)
    files = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).runtime_files
    assert not isinstance(files, Unknown)
    assert list(files.values()) == [Unknown("no permission", "run this as root")]


def test_in_a_pod_the_hosts_configuration_is_out_of_sight_unless_it_is_mounted(tmp_path: Path) -> None:
    paths = MachinePaths.under(tmp_path)
    assert isinstance(gather_host(None, paths, in_pod=True).runtime_files, Unknown)
    assert gather_host(tmp_path, paths, in_pod=True).runtime_files == {}
