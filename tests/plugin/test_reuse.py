"""The parts of an init container's set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Holder, Holding
from neuron_plugin.plugin.reuse import part_for_unknown, part_of, reusable_mask
from neuron_plugin.topology import Geometry
from tests.plugin.world import CORE, INF2, LINE, NEURON, TRN1, app, decided, devices, init, pod, ref, sidecar


def test_only_init_sets_of_that_resource_are_reusable_less_what_lasting_containers_have() -> None:
    request = pod("a", init(4), init(2, CORE, "second"), sidecar(1), app(2))
    holder = Holder(
        ref("a"),
        (
            Holding("init", NEURON, devices(0, 1, 2, 3)),
            Holding("second", CORE, devices(9)),
            Holding("sidecar", NEURON, devices(0)),
        ),
    )
    assert reusable_mask(request, holder, NEURON) == devices(1, 2, 3)
    assert reusable_mask(request, holder, CORE) == devices(9)


def test_what_was_drawn_counts_only_where_too_little_is_left() -> None:
    request = pod("a", init(4), app(2))
    assert part_of(TRN1, request, request.request[1], devices(3), devices(1, 2)) == devices(1, 2)


def test_the_decided_part_comes_first_if_it_is_there() -> None:
    request = decided("a", init(4), app(2), sets=[[0, 1, 2, 3], [1, 2]], geometry=INF2)
    part = request.request[1]
    all_four, three = devices(0, 1, 2, 3, geometry=INF2), devices(0, 2, 3, geometry=INF2)
    assert part_of(INF2, request, part, all_four, devices(0, 3, geometry=INF2)) == devices(1, 2, geometry=INF2)
    assert part_of(INF2, request, part, three, devices(0, 3, geometry=INF2)) == devices(2, 3, geometry=INF2)


@given(data=st.data(), geometry=st.sampled_from([TRN1, INF2]))
def test_p46_a_part_has_the_size_asked_for_and_never_leaves_what_the_pod_has_left(
    data: st.DataObject, geometry: Geometry
) -> None:
    left = data.draw(st.sets(st.integers(0, geometry.device_count - 1), min_size=1))
    count = data.draw(st.integers(1, len(left)))
    drawn = data.draw(st.permutations(range(geometry.device_count)))[:count]
    request = pod("a", init(len(left)), app(count))
    mask = part_of(geometry, request, request.request[1], geometry.devices_mask(left), geometry.devices_mask(drawn))
    assert len(geometry.whole_devices(mask)) == count
    assert mask & ~geometry.devices_mask(left) == 0


@given(data=st.data())
def test_p46_containers_that_share_nothing_in_the_kubelets_account_share_nothing_in_ours(data: st.DataObject) -> None:
    """Whatever their kinds: a pod's init container, then some that draw from its set, for good or not."""
    held = [Holding("#0", CORE, LINE.cores_mask(range(8)))]
    left = set(range(8))
    while left and len(held) < 5:
        drawn = data.draw(st.sets(st.sampled_from(sorted(left)), min_size=1))
        mask = LINE.cores_mask(drawn)
        part = part_for_unknown(LINE, held, CORE, mask, swaps=True)
        assert part.bit_count() == len(drawn)
        assert not part & ~held[0].mask
        for one in held:
            assert (one.mask & part).bit_count() == (one.on_account & mask).bit_count()
        held.append(Holding(f"#{len(held)}", CORE, part, mask))
        if data.draw(st.booleans()):
            left -= drawn
