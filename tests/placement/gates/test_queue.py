"""In which order gated pods are looked at, and which are not."""

from __future__ import annotations

from typing import Any

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.placement.queue import Queue
from neuron_plugin.planning.population import PodKind
from tests.support.manifests import pod_manifest
from tests.support.world import CORE, record_of

GROUP = "neuron-plugin.io/group"


def pod(name: str, amount: int = 1, *, at: int = 0, group: str = "", priority: int = 0) -> NeuronPod:
    annotations = {GROUP: group} if group else {}
    manifest: dict[str, Any] = pod_manifest(name, CORE, amount, annotations=annotations, priority=priority)
    manifest["metadata"] |= {"uid": name, "creationTimestamp": f"2026-01-01T00:00:{at:02}Z"}
    return record_of(manifest)


def queue_of(*pods: NeuronPod) -> Queue:
    queue = Queue()
    for one in pods:
        queue.put(one)
    return queue


def order(queue: Queue) -> list[str]:
    """The names in the order in which all are placed."""
    names = []
    for _, one in queue.in_order():
        names.append(one.reference.name)
        queue.remove(one.uid)
    return names


def test_priority_comes_before_age_and_age_before_name() -> None:
    pods = (pod("late", at=9), pod("b", at=1), pod("a", at=1), pod("urgent", at=9, priority=5), pod("two", 2, at=3))
    assert order(queue_of(*pods)) == ["urgent", "a", "b", "two", "late"]


def test_of_a_kind_that_fits_nowhere_only_the_first_is_looked_at() -> None:
    queue = queue_of(*(pod(f"big-{number}", 8) for number in range(100)), pod("small", 1, at=5))
    seen = []
    for kind, one in queue.in_order():
        seen.append(one.reference.name)
        if one.request and one.requests[0].count == 8:
            queue.hopeless.add(kind)
        else:
            queue.remove(one.uid)
    assert seen == ["big-0", "small"]
    assert [one.reference.name for _, one in queue.in_order()] == []


def test_a_new_pod_of_a_hopeless_kind_is_not_looked_at_either() -> None:
    queue = queue_of(pod("first", 8))
    queue.hopeless.add(PodKind.of(pod("first", 8)))
    queue.put(pod("second", 8))
    assert order(queue) == []


def test_a_group_is_looked_at_again_when_a_member_comes() -> None:
    queue = queue_of(pod("one", group="job"))
    queue.hopeless.add(PodKind.of(pod("one", group="job")))
    queue.put(pod("two", group="job"))
    assert [one.reference.name for _, one in queue.in_order()] == ["one"]


def test_a_group_stands_where_its_highest_priority_does() -> None:
    queue = queue_of(
        pod("plain", priority=5), pod("low", group="job", at=1), pod("high", group="job", priority=9, at=2)
    )
    assert [one.reference.name for _, one in queue.in_order()] == ["low", "plain"]


def test_a_pod_that_says_something_else_now_is_of_another_kind() -> None:
    queue = queue_of(pod("train", 8))
    queue.hopeless.add(PodKind.of(pod("train", 8)))
    queue.put(pod("train", 2))
    assert len(queue) == 1
    assert queue.kinds() == [PodKind.of(pod("train", 2))]
    assert order(queue) == ["train"]


def test_the_last_pod_of_a_hopeless_kind_takes_the_verdict_with_it() -> None:
    queue = queue_of(pod("train", 8))
    queue.hopeless.add(PodKind.of(pod("train", 8)))
    queue.remove(pod("train", 8).uid)
    assert not queue.hopeless
    assert not queue.kinds()
