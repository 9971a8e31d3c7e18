"""The whole daemon with pods whose annotations constrain their devices, and no extender."""

from __future__ import annotations

from tests.plugin.site import a_site, decision_of, eventually, ids
from tests.plugin.world import CORE, NEURON, app

PREFIX = "neuron-plugin.io/"


async def test_a_pod_on_another_product_than_it_names_is_served_and_has_an_event() -> None:
    async with a_site() as site, site.daemon():
        assert len(ids(await site.run("a", app(4), annotations={f"{PREFIX}device-name": "trn2"}), NEURON)) == 4
        await site.annotated("a")
        await eventually(lambda: "ConstraintNotKept" in site.event_reasons())


async def test_a_pod_gets_devices_that_its_annotations_allow() -> None:
    async with a_site() as site, site.daemon():
        denied = {f"{PREFIX}deny-devices": "0-10,12-14"}
        assert ids(await site.run("a", app(2, CORE), annotations=denied), CORE) == (22, 23)
        same = {f"{PREFIX}same-device": "load,serve", f"{PREFIX}allow-devices": "9"}
        pair = await site.run("b", app(1, CORE, "load"), app(1, CORE, "serve"), annotations=same)
        assert ids(pair, CORE, "load") + ids(pair, CORE, "serve") == (18, 19)
        await site.annotated("a", "b")
        assert "ConstraintNotKept" not in site.event_reasons()


async def test_two_equal_pods_that_swap_their_sets_hear_of_the_constraint_that_no_longer_holds() -> None:
    async with a_site() as site, site.daemon() as daemon:
        limits = {f"{PREFIX}allow-devices": "0-3"}
        site.create("a", app(4), annotations=decision_of(app(4), sets=[[0, 1, 2, 3]], time=1) | limits)
        site.create("b", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]], time=2))
        assert ids(await site.admit("b"), NEURON) == (0, 1, 2, 3)
        assert ids(await site.admit("a"), NEURON) == (4, 5, 6, 7)
        await site.confirmed(daemon, "a", "b")
        await eventually(lambda: {"AssignmentCorrected", "ConstraintNotKept"} <= set(site.event_reasons()))


async def test_an_annotation_that_cannot_be_read_is_reported_and_its_pod_served() -> None:
    async with a_site() as site, site.daemon():
        assert ids(await site.run("a", app(4), annotations={f"{PREFIX}allow-devices": "?"}), NEURON)
        await eventually(lambda: "InvalidNeuronConstraint" in site.event_reasons())
