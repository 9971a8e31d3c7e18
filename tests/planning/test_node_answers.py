"""What one node says to a pod that asks something of its devices."""

from __future__ import annotations

import pytest

from neuron_plugin.planning.node_answers import MOST_REASONS, NodeAnswer, node_answer, node_answers, sentence_of
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.manifests import container, pod_manifest, with_memory
from tests.support.world import CORE, DEVICE, World, record_of

LEFT = "neuron-plugin.io/memory left, of 8192 on each device: 3072 on devices 0,2, 8192 on devices 1,3"


@pytest.fixture
def half_full(world: World) -> World:
    """A node of four devices with 8 GiB each; pods use 5 GiB of devices 0 and 2."""
    world.node("node", "inf1.6xlarge")
    for device in (0, 2):
        containers, assigned = [with_memory("main", 1, 5120)], {"NEURON_CORES": str(device * 4)}
        world.show(pod_manifest(f"holder-{device}", containers=containers, node="node", annotations=assigned))
    return world


def said(world: World, *containers: AnyJson, **constraints: str) -> NodeAnswer:
    keys = {f"neuron-plugin.io/{key.replace('_', '-')}": text for key, text in constraints.items()}
    pod = record_of(pod_manifest("new", containers=containers, annotations=keys))
    return node_answer(world.state.scene(), pod, "node")


def blocked(answer: NodeAnswer) -> list[tuple[str, tuple[int, ...], list[str]]]:
    return [(one.container, one.ids, [pod.name for pod in one.holders]) for one in answer.blocked]


def test_what_is_left_of_an_amount_is_shown_for_each_device(half_full: World) -> None:
    fits = said(half_full, with_memory("main", 1, 5120))
    refused = said(half_full, with_memory("main", 1, 5120), allow_devices="2")

    assert (fits.fits, fits.details) == (True, (LEFT,))
    assert refused.reasons == ("has no free linked Neuron devices with 5120 neuron-plugin.io/memory left on each",)
    assert refused.details == (LEFT, "the pod's annotations leave out devices 0-1,3")
    assert blocked(refused) == [("main", (8,), ["holder-2"])]


def test_the_product_of_the_devices_is_named_to_a_pod_that_asks_for_another(half_full: World) -> None:
    refused = said(half_full, container("main", DEVICE, 1), device_name="trn1")

    assert refused.reasons == ("has devices of another product than the pod asks for",)
    assert refused.details == ("its devices are inf1 or inferentia",)


def test_containers_that_share_a_device_have_a_blocked_set_each(half_full: World) -> None:
    refused = said(
        half_full,
        container("load", CORE, 3),
        container("serve", CORE, 2),
        same_device="load,serve",
        allow_devices="0",
    )

    assert refused.details == ("the pod's annotations leave out devices 1-3",)
    assert blocked(refused) == [("load", (0, 1, 2), ["holder-0"]), ("serve", (0, 1), ["holder-0"])]


@pytest.mark.parametrize(
    ("rule", "spec"),
    [
        ("affinity", {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}),
        ("spread", {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}),
    ],
)
def test_a_label_that_a_node_lacks_is_named_with_the_rule_that_needs_it(world: World, rule: str, spec: AnyJson) -> None:
    world.node("node", "inf1.xlarge")
    manifest = pod_manifest("new", DEVICE, 1)
    terms = spec.get("topologySpreadConstraints") or next(iter(spec["affinity"]["podAffinity"].values()))
    terms[0] |= {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "db"}}}
    manifest["spec"] |= spec
    (answer,) = node_answers(world.state.scene(), record_of(manifest))
    assert f"has no label rack, which the pod's {rule} needs" in answer.reasons


@pytest.mark.parametrize(("reasons", "ends"), [(0, "is full"), (1, ", and 1 more reason"), (2, ", and 2 more reasons")])
def test_the_reasons_that_a_sentence_leaves_out_are_counted(reasons: int, ends: str) -> None:
    answers = [NodeAnswer(str(n), has_neuron=True, reasons=(f"{n} is full",)) for n in range(MOST_REASONS + reasons)]
    assert sentence_of(answers).endswith(ends)
