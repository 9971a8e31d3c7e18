"""The whole daemon when a device of a running pod fails, and what that pod is shown of its devices."""

from __future__ import annotations

import msgspec

from neuron_plugin.allocation.keys import UNHEALTHY_LABEL
from neuron_plugin.simulation.api_server_kinds import EVENTS, PODS
from tests.plugin.site import NAMESPACE, Site, a_site, eventually, ids
from tests.plugin.world import NEURON, app


def events_on(site: Site, pod: str) -> list[str]:
    assert site.api is not None
    found = [event for event in site.api.objects(EVENTS) if event["regarding"]["name"] == pod]
    return [event["reason"] for event in found if event["reason"] != "AssignmentCorrected"]


def is_labelled(site: Site, pod: str) -> bool:
    assert site.api is not None
    labels = site.api.get(PODS, pod, NAMESPACE)["metadata"].get("labels") or {}
    return labels.get(UNHEALTHY_LABEL) == "true"


async def test_a_pod_is_shown_that_its_device_failed_and_recovered_and_others_are_not() -> None:
    async with a_site() as site:
        site.settings = msgspec.structs.replace(site.settings, label_pods_on_sick_devices=True)
        async with site.daemon() as daemon:
            (device,) = ids(await site.run("a", app(1)), NEURON)
            await site.run("b", app(1))
            await site.confirmed(daemon, "a", "b")
            site.node.set_unhealthy_components(device, ["hbm"])
            await eventually(lambda: events_on(site, "a") == ["NeuronDeviceUnhealthy"] and is_labelled(site, "a"))
            site.node.set_unhealthy_components(device, [])
            await eventually(lambda: set(events_on(site, "a")) == {"NeuronDeviceUnhealthy", "NeuronDeviceHealthy"})
            await eventually(lambda: not is_labelled(site, "a"))
            assert events_on(site, "b") == []
            assert not is_labelled(site, "b")


async def test_a_device_that_recovers_while_the_plugin_is_away_leaves_no_label() -> None:
    async with a_site() as site:
        site.settings = msgspec.structs.replace(site.settings, label_pods_on_sick_devices=True)
        async with site.daemon():
            (device,) = ids(await site.run("a", app(1)), NEURON)
            site.node.set_unhealthy_components(device, ["hbm"])
            await eventually(lambda: is_labelled(site, "a"))
        site.node.set_unhealthy_components(device, [])
        async with site.daemon():
            await eventually(lambda: not is_labelled(site, "a"))
