"""The UltraServer as the driver's class attributes tell it."""

from __future__ import annotations

from collections.abc import Callable

from neuron_plugin.hardware.sysfs import Sysfs
from neuron_plugin.hardware.ultraserver import UltraServer, read_ultraserver
from neuron_plugin.simulation import SimulatedNode

MakeNode = Callable[..., SimulatedNode]


def with_class_files(node: SimulatedNode, **texts: str) -> Sysfs:
    for name, text in texts.items():
        path = node.paths.sysfs / "class/neuron_device" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
    return Sysfs(node.paths.sysfs)


def test_a_machine_alone_is_in_none(make_node: MakeNode) -> None:
    assert read_ultraserver(Sysfs(make_node("trn2.3xlarge").paths.sysfs)) is None


def test_a_member_of_four_knows_its_ids(make_node: MakeNode) -> None:
    sysfs = with_class_files(
        make_node("trn2.3xlarge"),
        ultraserver_mode="1,3,4\n",
        server_id_4="0a1b2c3d4e5f6071\n",
        node_id_4="2\n",
        server_id_2="00000000000000aa\n",
        node_id_2="0\n",
    )
    assert read_ultraserver(sysfs) == UltraServer(
        mode="1,3,4", server_id_2="00000000000000aa", node_id_2="0", server_id_4="0a1b2c3d4e5f6071", node_id_4="2"
    )


def test_a_pair_has_no_ids_of_four(make_node: MakeNode) -> None:
    sysfs = with_class_files(
        make_node("trn2.3xlarge"), ultraserver_mode="2,4\n", server_id_2="00000000000000aa\n", node_id_2="1\n"
    )
    found = read_ultraserver(sysfs)
    assert found is not None
    assert (found.server_id_4, found.node_id_4) == ("", "")
    assert (found.server_id_2, found.node_id_2) == ("00000000000000aa", "1")


def test_during_the_election_nothing_is_said(make_node: MakeNode) -> None:
    busy = {"ultraserver_mode": "busy\n", "node_id_2": "busy\n", "node_id_4": "busy\n"}
    assert read_ultraserver(with_class_files(make_node("trn2.3xlarge"), **busy)) is None


def test_what_no_election_prints_is_not_told(make_node: MakeNode) -> None:
    """Told to the cluster, a page of text would make the extender refuse the whole inventory."""
    sysfs = with_class_files(make_node("trn2.3xlarge"), server_id_4="a" * 4096, server_id_2="00000000000000aa\n")
    found = read_ultraserver(sysfs)
    assert found is not None
    assert (found.server_id_4, found.server_id_2) == ("", "00000000000000aa")


def test_a_switched_type_has_other_files_and_is_in_none(make_node: MakeNode) -> None:
    assert read_ultraserver(Sysfs(make_node("trn3s.48xlarge").paths.sysfs)) is None
