"""Disjoint sets are found whenever there are some, and hopeless pods are left soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.placement import pack
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.topology import Geometry, Unit
from tests.allocation.nodes import SMALL, any_geometry, core, device, free_masks, pods
from tests.topology.oracle import INF1, INF2_RING, WIDE_LINE, Cores, as_cores, oracle_sets

LASTING = (ContainerKind.APP, ContainerKind.SIDECAR)


def packs(geometry: Geometry, free: Cores, request: PodRequest) -> bool:
    """Whether any disjoint sets exist: tries every one."""
    if not request:
        return True
    sets = oracle_sets(geometry, request[0].resource.unit, request[0].count)
    return any(packs(geometry, free - cores, request[1:]) for cores in sets if cores <= free)


@given(st.data(), st.sampled_from(SMALL))
def test_sets_are_found_exactly_when_there_are_some(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(pods(geometry, most=3, kinds=LASTING))
    assert (pack(geometry, free, request) is not None) == packs(geometry, as_cores(free), request)


@given(st.data(), any_geometry())
def test_what_is_found_is_valid_disjoint_and_in_the_order_of_the_request(
    data: st.DataObject, geometry: Geometry
) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(pods(geometry, most=8, kinds=LASTING))
    left = as_cores(free)
    for part, mask in zip(request, pack(geometry, free, request) or (), strict=False):
        assert as_cores(mask) in oracle_sets(geometry, part.resource.unit, part.count)
        assert as_cores(mask) <= left
        left -= as_cores(mask)


def like(part: ContainerRequest, times: int) -> PodRequest:
    return (part,) * times


def test_every_device_can_be_packed_one_by_one() -> None:
    masks = pack(INF2_RING, INF2_RING.all_mask, like(device(1), 12))
    assert masks is not None
    assert sum(masks) == INF2_RING.all_mask


def test_the_first_core_is_a_set_like_any_other() -> None:
    masks = pack(INF1, INF1.all_mask, like(core(1), 16))
    assert masks is not None
    assert sum(masks) == INF1.all_mask
    assert pack(INF1, INF1.mask_of(Unit.CORE, (0, 4, 5)), (core(1), core(2))) == (0b1, 0b110000)


def test_sets_come_back_in_the_order_of_the_request() -> None:
    free = INF2_RING.devices_mask((0, 1, 2, 4, 5))
    small, large = pack(INF2_RING, free, (device(2), device(3))) or (0, 0)
    assert INF2_RING.devices_touched(small) == (4, 5)
    assert INF2_RING.devices_touched(large) == (0, 1, 2)


def test_one_container_more_than_there_are_windows_is_seen_at_once() -> None:
    torn = WIDE_LINE.mask_of(Unit.CORE, (core for core in range(128) if core % 8 not in (2, 5)))
    assert pack(WIDE_LINE, torn, like(core(3), 1)) is None
    assert pack(WIDE_LINE, torn, like(core(2), 48)) is not None
    assert pack(WIDE_LINE, torn, like(core(2), 49)) is None


def test_a_search_without_end_is_given_up() -> None:
    """Eleven unlike containers that miss by one core: more arrangements than could ever be tried."""
    torn = WIDE_LINE.mask_of(Unit.CORE, (core for core in range(128) if core % 8 != 7))
    assert pack(WIDE_LINE, torn, (*like(core(4), 16), *like(core(3), 16), core(1))) is None


def test_no_containers_need_no_sets() -> None:
    assert pack(INF1, 0, ()) == ()
