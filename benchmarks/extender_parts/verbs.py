"""Verbs in one process: no sockets, so the figures are the extender's own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import msgspec

from extender_parts.clusters import bound_pod, filled_service, record_of
from extender_parts.measuring import CONSTRAINTS, ROUNDS, echo, filter_body, log_to_nowhere, percentile, seeded, timed
from neuron_plugin.allocation import Resource
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.placement.state import ClusterState
from tests.support.manifests import pod_manifest

_SERVING = {"labelSelector": {"matchLabels": {"app": "serving"}}, "topologyKey": "kubernetes.io/hostname"}
APART = {
    "topologySpreadConstraints": [_SERVING | {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": _SERVING}]
        }
    },
}
"""What many charts write for the replicas of a service."""


def verbs() -> None:
    """Filter and prioritize by names, against decoding and re-encoding the same body."""
    log_to_nowhere()
    print("filter and prioritize in process, names, every node in a state of its own (ms of CPU)")
    print('"best" is the ratio of the tenth percentiles: what other work on the machine has disturbed least')
    print('"alike" is the ratio to decoding the body and encoding the very answer, sentences included')
    print(" nodes  devices  refused  floor p50  filter p50    p99  ratio  best  alike  first  prioritize  ratio  first")
    for nodes, devices in ((100, 4), (1000, 4), (5000, 1), (5000, 4), (5000, 8), (15000, 4)):
        service, _, names = filled_service(nodes)
        print(f"{nodes:>6} {devices:>8} {measured(service, filter_body(names, devices))}")
    service, _, names = filled_service(5000)
    print(f"with constraints\n  5000 {4:>8} {measured(service, filter_body(names, 4, CONSTRAINTS))}")
    service, state, names = filled_service(5000)
    found = changing(service, state, names)
    p50, p99 = statistics.median(found), percentile(found, 0.99)
    print(f"5000 nodes, one node's state changed before each filter: p50 {p50:.2f}, p99 {p99:.2f}")
    for nodes in (1000, 5000):
        for prefers in ({}, APART):
            found = leading(*filled_service(nodes, FilterMode.BEST), prefers)
            p50, p99 = statistics.median(found), percentile(found, 0.99)
            what = "the best, the pods would rather be apart" if prefers else "the best"
            print(f"{nodes} nodes, filter names {what}, and assumes the pod there: p50 {p50:.2f}, p99 {p99:.2f}")


def measured(service: ExtenderService, body: bytes) -> str:
    """The rest of a line; "first" is a call that nothing is remembered for.

    Floor and verb take turns, so that other work on the machine falls on both alike.
    """
    first = timed(lambda: service.answer("filter", body))
    first_scores = timed(lambda: service.answer("prioritize", body))
    floors, filters = beside_floor(lambda: service.answer("filter", body), lambda: echo(body))
    answer = msgspec.json.decode(service.answer("filter", body))
    alike, again = map(
        statistics.median, beside_floor(lambda: service.answer("filter", body), lambda: echo(body, answer))
    )
    floor, p50 = statistics.median(floors), statistics.median(filters)
    best = percentile(filters, 0.1) / percentile(floors, 0.1)
    scores_floor, scores = map(
        statistics.median, beside_floor(lambda: service.answer("prioritize", body), lambda: echo(body))
    )
    refused = sum(len(answer[kind]) for kind in ("FailedNodes", "FailedAndUnresolvableNodes"))
    return (
        f"{refused:>8} {floor:>10.2f} {p50:>11.2f} {percentile(filters, 0.99):>6.2f} {p50 / floor:>6.1f} {best:>6.1f} "
        f"{again / alike:>6.1f} {first:>6.1f}{scores:>16.2f} {scores / scores_floor:>6.1f} {first_scores:>6.1f}"
    )


def beside_floor(verb: Callable[[], object], floor: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Milliseconds of the floor and of a verb, in turns."""
    pairs = [(timed(floor), timed(verb)) for _ in range(ROUNDS)]
    return [floor for floor, _ in pairs], [took for _, took in pairs]


def leading(
    service: ExtenderService, state: ClusterState, names: list[str], prefers: Mapping[str, object]
) -> list[float]:
    """Filter for one new pod after the other, each of which changes a node."""
    found = []
    for number in range(ROUNDS):
        manifest = pod_manifest(f"new-{number}", Resource.NEURON, 1)
        manifest["metadata"]["labels"] = {"app": "serving"}
        manifest["spec"] |= prefers
        state.put_pod(record_of(manifest))
        body = msgspec.json.encode({"Pod": manifest, "Nodes": None, "NodeNames": names})
        found.append(timed(lambda body=body: service.answer("filter", body)))  # type: ignore[misc]
    return found[1:]


def changing(service: ExtenderService, state: ClusterState, names: list[str]) -> list[float]:
    """Filter while one node's state changes before each call, as binds do it."""
    body, chance, found = filter_body(names), seeded(2), []
    for number in range(ROUNDS):
        node, device = chance.choice(names), chance.randrange(16)
        state.put_pod(record_of(bound_pod(f"late-{number}", node, device)))
        found.append(timed(lambda: service.answer("filter", body)))
    return found
