"""Holders whose pod is not known: something was allocated, and nobody has told us for whom.

A nameless stand-in is made by an Allocate that no decision names; it lasts until the kubelet has told which pod has
its ids. A named one is a pod that the kubelet lists and the API server has not shown; it lacks only the UID.
"""

from __future__ import annotations

from neuron_plugin.allocation import Holder, PodReference, PodUid, Resource

_PREFIX = "stand-in/"
"""Of the key in the UID's place; no Kubernetes UID has a slash."""


def nameless_stand_in(number: int) -> PodReference:
    """A holder for an Allocate of a pod that nobody has told us of; ``number`` tells it from others."""
    return PodReference(PodUid(f"{_PREFIX}#{number}"), "", "")


def named_stand_in(namespace: str, name: str) -> PodReference:
    """A holder for a pod that the kubelet lists and no watch has shown."""
    return PodReference(PodUid(f"{_PREFIX}{namespace}/{name}"), namespace, name)


def is_known(pod: PodReference) -> bool:
    """Whether this is a pod with its UID and no stand-in."""
    return not pod.uid.startswith(_PREFIX)


def stands_in(holder: Holder) -> bool:
    """Whether this holder's pod is not known to the API server's watch yet."""
    return not is_known(holder.pod)


def is_nameless(holder: Holder) -> bool:
    """Whether not even the name of this holder's pod is known."""
    return stands_in(holder) and not holder.pod.name


def is_outdated(holder: Holder, resource: Resource, mask: int) -> bool:
    """Whether ids that the kubelet regards as free under ``resource`` cannot be this holder's any more.

    The kubelet gives no id of a resource twice. So of a nameless stand-in under the same name nothing is left; a pod
    that is known to live is believed more than the kubelet (kubernetes/kubernetes#137534).
    """
    meant = [holding for holding in holder.holdings if holding.mask & mask]
    return is_nameless(holder) and all(holding.resource is resource for holding in meant)
