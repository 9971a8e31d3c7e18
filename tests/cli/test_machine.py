from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from neuron_plugin.cli import machine
from neuron_plugin.cli.command import CommandError, Parser
from neuron_plugin.hardware.inventory import MachinePaths
from neuron_plugin.settings import SettingsError
from neuron_plugin.topology.geometry import Topology
from tests.cli.doubles import MakeNode


def arguments(*given: object) -> Namespace:
    parser = Parser(prog="tool")
    machine.add_flags(parser)
    return parser.parse_args([str(word) for word in given])


def test_this_machine_is_read_where_linux_has_it() -> None:
    assert machine.paths_of(arguments()) == MachinePaths()
    assert machine.pod_resources_socket_of(arguments()) == Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def test_everything_lies_below_the_root(tmp_path: Path) -> None:
    given = arguments("--root", tmp_path)
    assert machine.paths_of(given) == MachinePaths.under(tmp_path)
    assert machine.pod_resources_socket_of(given) == tmp_path / "var/lib/kubelet/pod-resources/kubelet.sock"


def test_single_paths_win_over_the_root(tmp_path: Path) -> None:
    given = arguments(
        *("--root", tmp_path, "--sysfs", "/s", "--dev", "/d", "--logical-core-file", "/l"),
        *("--pod-resources-socket", "/k.sock"),
    )
    assert machine.paths_of(given) == MachinePaths(Path("/s"), Path("/d"), Path("/l"))
    assert machine.pod_resources_socket_of(given) == Path("/k.sock")


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="is no directory: expected one with sys/ and dev/"):
        machine.paths_of(arguments("--root", tmp_path / "file"))


def test_a_machine_without_devices_has_no_geometry(tmp_path: Path) -> None:
    seen = machine.look(arguments("--root", tmp_path))
    assert (seen.geometry, seen.usable_mask, seen.missing, seen.links) == (None, 0, (), {})
    assert "does not exist" in seen.inventory.absence


def test_links_are_the_drivers_where_it_prints_any(make_node: MakeNode) -> None:
    seen = machine.look(arguments("--root", make_node("inf2.24xlarge").root))
    assert not seen.links_are_assumed
    assert seen.links[1] == {0, 2}


def test_links_are_the_types_while_a_chip_is_missing(make_node: MakeNode) -> None:
    seen = machine.look(arguments("--root", make_node("trn1.32xlarge", missing=[3]).root))
    assert seen.links_are_assumed
    assert seen.links[0] == {1, 4, 12}, "never to the device that is missing"
    assert seen.missing == (3,)


def test_a_single_device_needs_no_links(make_node: MakeNode) -> None:
    assert not machine.look(arguments("--root", make_node("inf2.xlarge").root)).links_are_assumed


def test_a_skipped_device_is_not_missing(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(2, "core_count", "x")
    seen = machine.look(arguments("--root", node.root))
    assert [device.id for device in seen.inventory.skipped] == [2]
    assert seen.missing == ()
    assert 2 not in seen.links[1]


def test_cores_of_an_unhealthy_device_are_not_usable(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    assert machine.look(arguments("--root", node.root)).usable_mask == 0b1111_1111_0011


def test_the_users_types_name_what_the_catalogue_does_not(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("inf2.24xlarge")
    (node.root / "sys/devices/virtual/dmi/id/product_name").chmod(0o644)
    (node.root / "sys/devices/virtual/dmi/id/product_name").write_text("inf9.24xlarge\n")
    types = tmp_path / "types.yaml"
    types.write_text("instance-types: [{name: inf9.24xlarge, devices: 6, cores-per-device: 2, topology: ring}]\n")
    unknown = machine.look(arguments("--root", node.root))
    known = machine.look(arguments("--root", node.root, "--instance-types", types))
    assert unknown.geometry is not None
    assert known.geometry is not None
    assert (unknown.geometry.topology, known.geometry.topology) == (Topology.LINE, Topology.RING)
    assert (unknown.instance, known.instance and known.instance.name) == (None, "inf9.24xlarge")


def test_the_type_can_be_told_where_the_machine_does_not(make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge", missing=[15])
    (node.root / "sys/class/dmi/id").unlink()
    unknown = machine.look(arguments("--root", node.root))
    told = machine.look(arguments("--root", node.root, "--instance-type", "trn1.32xlarge"))
    assert (unknown.missing, told.missing) == ((), (15,))


def test_an_unknown_type_is_refused_with_where_to_look(make_node: MakeNode) -> None:
    with pytest.raises(CommandError, match="--instance-type trn7 is not known: see 'neuron-plugin simulate types'"):
        machine.look(arguments("--root", make_node("inf2.xlarge").root, "--instance-type", "trn7"))


def test_a_broken_file_of_types_is_refused(make_node: MakeNode, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        machine.look(arguments("--root", make_node("inf2.xlarge").root, "--instance-types", tmp_path / "no.yaml"))


def test_the_environment_decides_what_a_core_is(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("trn2.3xlarge")
    assert machine.look(arguments("--root", node.root)).inventory.cores_per_device == 4
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert machine.look(arguments("--root", node.root)).inventory.cores_per_device == 8
