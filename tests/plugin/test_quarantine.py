from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.hardware import Process
from neuron_plugin.plugin.quarantine import Quarantine, Users, described
from neuron_plugin.plugin.standins import named_stand_in
from neuron_plugin.topology import CoreMask, Geometry, Topology

TRN1 = Geometry("trn1.32xlarge", Topology.TORUS, 16, 2, (1, 4, 8, 16))
GONE = PodReference(PodUid("uid-gone"), "default", "gone")
SECONDS = 30.0


def users(moment: float, *, complete: bool = True, **opened: Process) -> Users:
    """``neuron3=process``: who has what open."""
    processes = {int(device.removeprefix("neuron")): (process,) for device, process in opened.items()}
    return Users(processes, complete, moment)


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(SECONDS).with_suspect(GONE, TRN1.devices_mask((2, 3)), now=100.0)


def of(uid: str, *, uses: bool = True) -> Process:
    return Process(12, "python train.py", uid, uses)


def test_p60_what_a_vanished_pod_held_is_suspect_before_any_look(quarantine: Quarantine) -> None:
    assert quarantine.mask == TRN1.devices_mask((2, 3))
    assert "default/gone" in quarantine.reason_for(TRN1.devices_mask((3,)))
    assert quarantine.reason_for(TRN1.devices_mask((4,))) == ""


def test_p60_free_at_the_first_look_that_sees_nobody(quarantine: Quarantine) -> None:
    assert quarantine.after_look(TRN1, users(100.0)).mask == 0


def test_p60_kept_as_long_as_a_process_of_the_pod_has_a_device_open(quarantine: Quarantine) -> None:
    for moment in (100.0, 100 + SECONDS, 100 + 100 * SECONDS):
        quarantine = quarantine.after_look(TRN1, users(moment, neuron3=of("uid-gone")))
        assert quarantine.mask == TRN1.devices_mask((2, 3))
    assert "process 12 (python train.py) still has neuron3 open" in quarantine.reason_for(quarantine.mask)
    assert quarantine.after_look(TRN1, users(9999.0)).mask == 0


def test_p60_kept_when_the_pods_process_is_seen_though_others_are_not(quarantine: Quarantine) -> None:
    seen = users(100 + 2 * SECONDS, complete=False, neuron2=of("uid-gone"))
    assert quarantine.after_look(TRN1, seen).suspects


def test_p60_time_has_to_do_where_processes_cannot_be_seen(quarantine: Quarantine) -> None:
    waiting = quarantine.after_look(TRN1, users(101.0, complete=False))
    assert waiting.mask == quarantine.mask
    assert "cannot be seen" in waiting.reason_for(waiting.mask)
    assert waiting.after_look(TRN1, users(100 + SECONDS, complete=False)).mask == 0


def test_p60_another_pods_process_on_the_same_device_is_no_evidence(quarantine: Quarantine) -> None:
    """Two pods may have cores of one device, and monitors have every device open."""
    assert quarantine.after_look(TRN1, users(101.0, neuron3=of("uid-neighbour"))).mask == 0


def test_p60_a_process_that_names_no_pod_is_doubted_for_the_time_given(quarantine: Quarantine) -> None:
    kept = quarantine.after_look(TRN1, users(101.0, neuron3=of("")))
    assert "process 12" in kept.reason_for(kept.mask)
    assert kept.after_look(TRN1, users(100 + SECONDS, neuron3=of(""))).mask == 0


def test_p60_a_device_that_is_only_probed_is_not_in_use(quarantine: Quarantine) -> None:
    assert quarantine.after_look(TRN1, users(101.0, neuron3=of("uid-gone", uses=False))).mask == 0


def test_a_pod_without_a_known_uid_may_be_anybodys_for_the_time_given() -> None:
    gone = named_stand_in("default", "static")
    quarantine = Quarantine(SECONDS).with_suspect(gone, TRN1.devices_mask((3,)), now=0.0)
    kept = quarantine.after_look(TRN1, users(1.0, neuron3=of("uid-whoever")))
    assert kept.suspects
    assert not kept.after_look(TRN1, users(SECONDS, neuron3=of("uid-whoever"))).suspects


def test_a_look_begun_before_the_pod_vanished_proves_nothing(quarantine: Quarantine) -> None:
    assert quarantine.after_look(TRN1, users(99.9)) == quarantine


def test_one_look_is_enough_where_no_time_is_given() -> None:
    brief = Quarantine(SECONDS).with_suspect(GONE, CoreMask(1), 100.0, seconds=0.0)
    assert not brief.after_look(TRN1, users(100.0, complete=False, neuron0=of(""))).suspects
    assert brief.after_look(TRN1, users(100.0, neuron0=of("uid-gone"))).suspects


def test_a_pod_that_held_nothing_is_not_suspect() -> None:
    assert Quarantine(SECONDS).with_suspect(GONE, CoreMask(0), 1.0) == Quarantine(SECONDS)


def test_two_vanished_pods_are_let_go_of_one_by_one(quarantine: Quarantine) -> None:
    other = PodReference(PodUid("uid-other"), "default", "other")
    both = quarantine.with_suspect(other, TRN1.devices_mask((5,)), now=101.0)
    left = both.after_look(TRN1, users(102.0, neuron5=of("uid-other")))
    assert left.mask == TRN1.devices_mask((5,))


def test_all_sets_of_one_pod_are_suspect_though_they_come_one_by_one(quarantine: Quarantine) -> None:
    both = quarantine.with_suspect(GONE, TRN1.devices_mask((7,)), now=101.0)
    assert both.mask == TRN1.devices_mask((2, 3, 7))
    assert len(both.suspects) == 1


def test_the_cluster_is_told_of_devices_only_once_a_look_has_confirmed_it(quarantine: Quarantine) -> None:
    assert quarantine.devices(TRN1) == {}
    confirmed = quarantine.after_look(TRN1, users(101.0, neuron3=of("uid-gone")))
    assert set(confirmed.devices(TRN1)) == {2, 3}


def test_every_device_a_process_has_open_is_named(quarantine: Quarantine) -> None:
    process = of("uid-gone")
    looked = quarantine.after_look(TRN1, users(101.0, neuron2=process, neuron3=replace(process)))
    assert "still has neuron2, neuron3 open" in looked.reason_for(looked.mask)


@pytest.mark.parametrize(
    ("stands_for", "opened", "proof"),
    [
        (TRN1.devices_mask((3, 5)), of("uid-gone"), True),
        (TRN1.devices_mask((3, 5)), of("uid-gone", uses=False), False),
        (TRN1.devices_mask((3, 5)), of("uid-neighbour"), False),
        (TRN1.devices_mask((6,)), of("uid-gone"), False),
        (TRN1.cores_mask((10,)), of("uid-gone"), False),
    ],
)
def test_p60_whole_devices_that_a_vanished_pod_uses_stand_for_nobody_else(
    quarantine: Quarantine,
    stands_for: CoreMask,
    opened: Process,
    proof: bool,  # noqa: FBT001 - a table's column
) -> None:
    """Of a device in part the rest may be another pod's."""
    confirmed = quarantine.after_look(TRN1, users(101.0, neuron3=of("uid-gone")))
    assert confirmed.proves(TRN1, users(102.0, neuron5=opened), stands_for) is proof


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python train.py --token=secret --epochs 3", "python train.py"),
        ("python -m train", "python"),
        ("train\nneuron0 is free", "train neuron0 is free"),
        ("/opt/" + 1000 * "x", "/opt/" + 55 * "x"),
        ("", "unknown"),
    ],
)
def test_everybody_who_may_read_a_node_reads_of_a_process_what_it_is_and_no_more(command: str, told: str) -> None:
    """The reason stands in the node's annotation: arguments may be secret, and two megabytes long."""
    assert described([(3, Process(12, command))]) == f"process 12 ({told}) still has neuron3 open"


# Strangers: who had devices open when the daemon came.

STRANGER = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
STATIC = "0f1c2d3e4a5b6c7d8e9f001122334455"


def strangers(*opened: Users, used: int = 0, known: tuple[str, ...] = ()) -> Quarantine:
    seen = opened[0] if opened else users(100.0, neuron3=of(STRANGER))
    return Quarantine(SECONDS).with_strangers(TRN1, seen, used, known)


def test_p60_what_an_unknown_pod_has_open_is_suspect_for_the_time_given() -> None:
    found = strangers()
    assert found.mask == TRN1.devices_mask((3,))
    assert "of which nothing is known yet: process 12" in found.reason_for(found.mask)
    later = users(100 + SECONDS, neuron3=of(STRANGER))
    assert not found.after_look(TRN1, later).suspects
    assert not found.after_look(TRN1, users(101.0)).suspects


def test_p60_a_stranger_that_the_api_server_does_not_have_is_kept_as_long_as_it_runs() -> None:
    gone = strangers().after_roll_call(live={"another"}, unsettled=())
    for moment in (101.0, 100 + 100 * SECONDS):
        gone = gone.after_look(TRN1, users(moment, neuron3=of(STRANGER)))
        assert "which vanished: process 12" in gone.reason_for(TRN1.devices_mask((3,)))
    assert not gone.after_look(TRN1, users(9999.0)).suspects


def test_p60_a_live_pod_that_watches_blocks_nothing() -> None:
    assert not strangers().after_roll_call(live={STRANGER}, unsettled=()).suspects


def test_a_pod_that_asks_for_neuron_stays_a_stranger_until_it_is_known_what_it_holds() -> None:
    found = strangers()
    assert found.after_roll_call(live={STRANGER}, unsettled={STRANGER}) == found


def test_a_static_pods_hash_proves_nothing() -> None:
    found = strangers(users(100.0, neuron3=of(STATIC)))
    assert found.after_roll_call(live=set(), unsettled=()) == found
    assert not found.after_roll_call(live={STATIC}, unsettled=()).suspects


def test_p60_host_processes_probes_and_known_pods_are_no_strangers() -> None:
    for process in (of(""), of(STRANGER, uses=False)):
        assert not strangers(users(100.0, neuron3=process)).suspects
    assert not strangers(known=(STRANGER,)).suspects


def test_p60_what_a_known_pod_holds_is_not_suspect_and_the_rest_of_the_device_is() -> None:
    assert not strangers(used=TRN1.devices_mask((3,))).suspects
    assert strangers(used=TRN1.cores_mask((6,))).mask == TRN1.cores_mask((7,))


def test_the_cluster_is_told_of_a_stranger_only_once_it_has_vanished() -> None:
    assert not strangers().devices(TRN1)
    assert set(strangers().after_roll_call(set(), ()).devices(TRN1)) == {3}


def test_who_was_seen_to_vanish_is_not_acquitted_by_a_roll_call(quarantine: Quarantine) -> None:
    assert quarantine.after_roll_call({GONE.uid}, ()) == quarantine
