from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from neuron_plugin.hardware import MachinePaths
from neuron_plugin.inspection import host as processes
from neuron_plugin.inspection.facts import DeviceUser, DeviceUsers
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.host import gather_host, gather_users
from tests.inspection.doubles import MakeNode, unknown


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_simulated_machine_is_known_as_one(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    host = gather_host(node.root, node.paths, in_pod=False)
    assert host.simulated
    assert host.driver_loaded
    assert host.numbers == {device: (243, device) for device in range(6)}
    assert not isinstance(host.nodes, Unknown)
    assert [(each.device, each.is_character, each.mode) for each in host.nodes] == [
        (device, False, 0o666) for device in range(6)
    ]
    assert isinstance(host.pci, Unknown)
    assert (host.hook_files, host.runtime_files) == ((), {})


def test_an_empty_machine_is_no_error(tmp_path: Path) -> None:
    host = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False)
    assert not host.driver_loaded
    assert not host.simulated
    assert "cannot be listed" in unknown(host.nodes)
    (tmp_path / "sys/module/neuron").mkdir(parents=True)
    assert gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).driver_loaded, "and found no device"


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
    assert pci == ("Trainium1", "Inferentia")


def test_nodes_are_reported_as_they_are(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    write(dev / "neuron0").chmod(0o600)
    (dev / "neuron1").symlink_to("/nowhere")
    (dev / "neuron2").symlink_to("/dev/null")
    write(dev / "ng0n1")
    nodes = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).nodes
    assert not isinstance(nodes, Unknown)
    assert [(node.device, node.is_character, node.numbers) for node in nodes] == [(0, False, (0, 0)), (2, True, (1, 3))]
    assert nodes[0].mode == 0o600


def test_a_number_that_sysfs_does_not_tell_leaves_the_device_listed(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.set_attribute(0, "dev", None)
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("mode", [0, 0o600, 0o300])
def test_a_directory_of_configurations_that_may_not_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, mode: int
) -> None:
    directory = write(tmp_path / "etc/crio/crio.conf.d/neuron.conf").parent
    directory.chmod(mode)
    files = gather_host(tmp_path, MachinePaths.under(tmp_path), in_pod=False).runtime_files
    directory.chmod(0o700)
    assert not isinstance(files, Unknown)
    assert files[str(directory)] == Unknown("no permission", "run this as root")


def test_in_a_pod_the_hosts_configuration_is_out_of_sight_unless_it_is_mounted(tmp_path: Path) -> None:
    paths = MachinePaths.under(tmp_path)
    assert isinstance(gather_host(None, paths, in_pod=True).runtime_files, Unknown)
    assert gather_host(tmp_path, paths, in_pod=True).runtime_files == {}


NOWHERE = Path("/nowhere/kubelet.sock")
UID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


def make_nodes(directory: Path, count: int) -> dict[int, Path]:
    directory.mkdir()
    nodes = {device: directory / f"neuron{device}" for device in range(count)}
    for node in nodes.values():
        node.touch()
    return nodes


def make_process(proc: Path, pid: int, *opened: Path, cgroup: str = "0::/user.slice\n") -> Path:
    """A process as /proc shows it, with files open for reading and writing."""
    process = proc / str(pid)
    for name in ("fd", "fdinfo"):
        (process / name).mkdir(parents=True)
    for number, path in enumerate(opened, 3):
        (process / "fd" / str(number)).symlink_to(path)
        (process / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{os.O_RDWR:07o}\n")
    (process / "cmdline").write_text("python\0train.py\0")
    (process / "cgroup").write_text(cgroup)
    return process


def test_a_container_is_reported_with_its_pod_and_its_devices(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 6), tmp_path / "proc"
    cgroup = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-0.scope\n"
    make_process(proc, 4711, nodes[4], nodes[5], cgroup=cgroup)
    (proc / "2").mkdir()
    (proc / "2/comm").write_text("kthreadd\n")
    found = gather_users(nodes, proc, NOWHERE)
    expected = DeviceUser(4711, "python train.py", (4, 5), UID)
    assert found == DeviceUsers((expected,))


def test_a_mounted_proc_that_is_not_the_machines_is_not_mended_by_mounting_it(tmp_path: Path) -> None:
    make_process(tmp_path / "proc", 1)
    found = gather_users({}, tmp_path / "proc", NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.hidden is not None
    assert "is not the machine's own" in found.hidden.why
    assert "watchProcesses" not in found.hidden.action


def test_where_the_kubelet_is_seen_all_processes_of_pods_are(tmp_path: Path) -> None:
    """As on a node that is itself a container (kind); the daemon has it so, too."""
    make_process(tmp_path / "proc", os.getpid())
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(path))
        kubelet.listen()
        assert gather_users({}, tmp_path / "proc", path) == DeviceUsers(())


def test_processes_that_may_not_be_looked_into_are_counted_and_ask_for_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = make_process(tmp_path / "proc", 2)
    (process / "comm").write_text("kthreadd\n")

    def refuse(_nodes: object, _proc: Path, denied: list[Path]) -> dict[Path, object]:
        denied.append(process)
        return {}

    monkeypatch.setattr(processes, "device_processes", refuse)
    found = gather_users({}, tmp_path / "proc", NOWHERE)
    assert found == DeviceUsers(
        (),
        Unknown(
            "1 process may not be looked into",
            "run this as root; in a pod it takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        ),
    )


def test_in_a_pod_the_way_to_see_the_host_s_processes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "shows_containers", lambda _socket, _proc: False)
    found = gather_users({}, Path("/proc"), NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.hidden is not None
    assert "watchProcesses" in found.hidden.action


def test_descriptors_that_only_probe_do_not_count(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    process = make_process(proc, 7, nodes[0])
    (process / "fdinfo/3").write_text(f"flags:\t{os.O_WRONLY:07o}\n")
    found = gather_users(nodes, proc, NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.users == ()


def test_without_proc_it_is_not_known(tmp_path: Path) -> None:
    assert isinstance(gather_users({}, tmp_path / "proc", NOWHERE), Unknown)
