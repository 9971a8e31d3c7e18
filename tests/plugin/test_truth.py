"""What a pod really holds, put together from the kubelet's list and from what was given."""

from __future__ import annotations

from neuron_plugin.allocation import Holder, HolderLedger, Holding
from neuron_plugin.kubelet import PodDevices
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.standins import named_stand_in, nameless_stand_in
from neuron_plugin.plugin.truth import listed_holdings, true_holdings, with_unlisted
from tests.plugin.world import CORE, DEVICE, NEURON, TRN1, app, devices, init, pod, recorded, ref, sidecar

ROW0, ROW1 = (0, 1, 2, 3), (4, 5, 6, 7)


def neuron(container: str, *ids: int) -> Holding:
    return Holding(container, NEURON, devices(*ids))


def ledger_of(name: str, *holdings: Holding) -> HolderLedger:
    return HolderLedger().with_holder(Holder(ref(name), holdings))


def test_the_kubelets_ids_become_cores_and_what_is_not_ours_is_left_out() -> None:
    found = PodDevices(
        "default",
        "a",
        (
            ContainerDevices("app", NEURON.value, ("1", "2")),
            ContainerDevices("second", CORE.value, ("0", "x", "-1")),
            ContainerDevices("third", "nvidia.com/gpu", ("0",)),
            ContainerDevices("fourth", DEVICE.value, ("77",)),
        ),
    )
    assert listed_holdings(TRN1, found) == (neuron("app", 1, 2), Holding("second", CORE, TRN1.cores_mask((0,))))


def test_without_init_containers_the_list_is_the_truth_in_the_order_of_the_request() -> None:
    second = type(app(1))("second", app(1).kind, app(1).limits)
    listed = (neuron("second", 1), neuron("app", 0))
    assert true_holdings(TRN1, pod("a", app(1), second), listed, HolderLedger()) == (
        neuron("app", 0),
        neuron("second", 1),
    )


def test_while_a_lasting_container_is_missing_there_is_no_truth_yet() -> None:
    assert true_holdings(TRN1, pod("a", sidecar(1), app(1)), (neuron("sidecar", 1),), HolderLedger()) is None


def test_two_containers_that_the_kubelet_gave_each_others_set_are_believed_as_listed() -> None:
    second = type(app(1))("second", app(1).kind, app(1).limits)
    ledger = ledger_of("a", neuron("app", 0), neuron("second", 1))
    listed = (neuron("app", 1), neuron("second", 0))
    assert true_holdings(TRN1, pod("a", app(1), second), listed, ledger) == listed


def test_p46_the_part_we_gave_in_place_of_a_random_one_is_the_truth() -> None:
    ledger = ledger_of("a", neuron("init", *ROW0), neuron("sidecar", 0), neuron("app", 1, 2))
    request = pod("a", init(4), sidecar(1), app(2))
    listed = (neuron("sidecar", 3), neuron("app", 0, 2))
    assert true_holdings(TRN1, request, listed, ledger) == (
        neuron("init", *ROW0),
        neuron("sidecar", 0),
        neuron("app", 1, 2),
    )


def test_p56_what_was_noted_for_an_equal_pod_is_this_ones_when_its_ids_are_listed_here() -> None:
    ledger = ledger_of("b", neuron("init", *ROW0), neuron("main", 1, 2))
    request = pod("a", init(4, name="prepare"), app(2))
    assert true_holdings(TRN1, request, (neuron("app", 0, 3),), ledger) == (
        neuron("prepare", *ROW0),
        neuron("app", 1, 2),
    )


def test_what_a_confirmed_pod_holds_is_nobody_elses_init_set() -> None:
    ledger = ledger_of("b", neuron("init", *ROW0))
    request = pod("a", init(4), app(4))
    assert true_holdings(TRN1, request, (neuron("app", *ROW0),), ledger, {ref("b").uid}) == (neuron("app", *ROW0),)


def test_an_init_set_that_nobody_noted_is_left_out() -> None:
    assert true_holdings(TRN1, pod("a", init(4), app(4)), (neuron("app", *ROW0),), HolderLedger()) == (
        neuron("app", *ROW0),
    )


def test_an_init_set_under_another_resource_name_is_found_by_its_size_alone() -> None:
    ledger = HolderLedger().with_holding(nameless_stand_in(0), Holding("", CORE, TRN1.cores_mask((30, 31))))
    request = pod("a", init(2, CORE), app(4))
    assert true_holdings(TRN1, request, (neuron("app", *ROW0),), ledger) == (
        Holding("init", CORE, TRN1.cores_mask((30, 31))),
        neuron("app", *ROW0),
    )
    again = pod("a", init(2, CORE), app(2, CORE))
    listed = (Holding("app", CORE, TRN1.cores_mask((0, 1))),)
    assert true_holdings(TRN1, again, listed, ledger) == listed


def test_a_pod_known_by_name_keeps_what_its_init_container_was_given() -> None:
    stand_in, named = nameless_stand_in(0), named_stand_in("default", "a")
    ledger = HolderLedger().with_holding(stand_in, neuron("", *ROW0)).with_holding(stand_in, neuron("#1", 1, 2))
    ledger = ledger.with_holding(nameless_stand_in(1), neuron("", *ROW1))
    found = with_unlisted(named, (neuron("app", 1, 2),), ledger)
    assert found == (neuron("app", 1, 2), neuron("", *ROW0))
    assert with_unlisted(named, (neuron("app", 1, 2),), HolderLedger().with_holder(Holder(named, found))) == found


def test_p50_what_a_call_that_was_cut_off_left_is_not_the_pods_when_it_came_again_for_other_ids() -> None:
    """It would keep for ever what the kubelet gives to another pod."""
    ledger = ledger_of("a", neuron("init", 0), neuron("app", 0, 1), neuron("#1", 0, 2))
    listed = (neuron("app", 0, 2),)
    assert true_holdings(TRN1, pod("a", init(1), app(2)), listed, ledger) == (neuron("init", 0), neuron("app", 0, 2))


def test_an_init_set_after_the_last_container_that_is_listed_is_found_by_its_size_alone() -> None:
    ledger = HolderLedger().with_holding(nameless_stand_in(0), neuron("#0", *ROW0))
    request, listed = pod("a", sidecar(1), init(4)), (neuron("sidecar", 8),)
    assert true_holdings(TRN1, request, listed, ledger) == (*listed, neuron("init", *ROW0))


def test_a_pod_known_by_name_keeps_an_init_set_that_is_part_of_what_is_listed() -> None:
    """The annotation tells it, too, once the pod is known."""
    ledger = HolderLedger().with_holder(Holder(nameless_stand_in(0), (neuron("#0", 2), neuron("#1", 2, 3))))
    found = with_unlisted(named_stand_in("default", "a"), (neuron("app", 2, 3),), ledger)
    assert found == (neuron("app", 2, 3), neuron("#0", 2))


def test_p56_an_init_set_that_nothing_listed_ties_to_its_pod_is_the_one_in_the_kubelets_file() -> None:
    """What was noted for it may have been another's that the kubelet admitted with its token."""
    noted = Holding("init", CORE, TRN1.cores_mask((30, 31)))
    ledger = ledger_of("a", noted, neuron("app", *ROW0))
    request = pod("a", init(2, CORE), app(4))
    records = (recorded("uid-a", "init", CORE, 28, 29),)
    listed = (neuron("app", *ROW0),)
    true = Holding("init", CORE, TRN1.cores_mask((28, 29)))
    assert true_holdings(TRN1, request, listed, ledger, records=records) == (true, *listed)
    assert true_holdings(TRN1, request, listed, ledger) == (noted, *listed)


def test_p61_what_was_given_to_the_next_pod_of_a_name_is_all_held_though_the_last_one_asked_for_less() -> None:
    """The watch lags behind; the kubelet, asked by name, tells of the next one, which has an init container."""
    ledger = HolderLedger().with_holder(Holder(nameless_stand_in(0), (neuron("#0", *ROW0), neuron("#1", 1))))
    assert true_holdings(TRN1, pod("a", app(1)), (neuron("app", 1),), ledger) == (neuron("#0", *ROW0), neuron("app", 1))


def test_p46_what_was_given_in_place_of_the_listed_ids_is_the_truth_where_the_call_is_remembered() -> None:
    """Under a stand-in, and by the ids of the call: the sizes of sidecar and app container are the same."""
    request = pod("a", init(4), sidecar(1), app(1))
    of_sidecar = Holding("#1", NEURON, devices(0), drawn=devices(3))
    of_app = Holding("#2", NEURON, devices(1), drawn=devices(0))
    ledger = HolderLedger().with_holder(Holder(nameless_stand_in(0), (neuron("#0", *ROW0), of_sidecar, of_app)))
    listed = (neuron("sidecar", 3), neuron("app", 0))
    truth = true_holdings(TRN1, request, listed, ledger)
    assert truth
    assert [one.drawn for one in truth[1:]] == [devices(3), devices(0)]
    assert truth == (neuron("init", *ROW0), neuron("sidecar", 0), neuron("app", 1))


def test_p61_an_init_set_that_the_kubelets_file_has_for_another_pod_is_not_found_by_its_size() -> None:
    ledger = HolderLedger().with_holding(nameless_stand_in(0), Holding("", CORE, TRN1.cores_mask((30, 31))))
    request, listed = pod("a", init(2, CORE), app(4)), (neuron("app", *ROW0),)
    records = (recorded("uid-b", "init", CORE, 30, 31),)
    assert true_holdings(TRN1, request, listed, ledger, records=records) == listed


def test_p61_of_a_pod_of_which_nothing_is_listed_all_has_to_be_in_the_kubelets_file() -> None:
    request = pod("a", init(4), init(2, name="second"))
    first, second = recorded("uid-a", "init", NEURON, *ROW0), recorded("uid-a", "second", NEURON, 1, 2)
    assert true_holdings(TRN1, request, (), HolderLedger(), records=(first,)) is None
    truth = true_holdings(TRN1, request, (), HolderLedger(), records=(first, second))
    assert truth == (neuron("init", *ROW0), neuron("second", 1, 2))


def test_p46_what_was_given_for_other_ids_is_not_taken_for_a_container_of_the_same_size() -> None:
    of_sidecar = Holding("sidecar", NEURON, devices(0), drawn=devices(3))
    ledger = ledger_of("a", neuron("init", *ROW0), of_sidecar)
    listed = (neuron("sidecar", 3), neuron("app", 1))
    truth = true_holdings(TRN1, pod("a", init(4), sidecar(1), app(1)), listed, ledger)
    assert truth == (neuron("init", *ROW0), neuron("sidecar", 0), neuron("app", 1))
