"""The volumes of pods' claims, read when a pod that has some is placed or planned for. They are no part of the state.

A claim's volume is remembered by the claim, not by the pod: the pods of a job share theirs. What a claim is bound to
never changes, so only claims without a volume are read again soon.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.node_rules import Volume
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.volumes import CLAIMS, PERSISTENT_VOLUMES

BOUND_SECONDS = 3600.0
"""How long a claim that has its volume is known: its volume does not change."""
AGAIN_SECONDS = 10.0
"""For how long a claim counts as not bound, or as not readable, before it is read again."""
MOST_CLAIMS = 10_000
"""Known at a time; then the oldest goes."""

_log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """What a claim was bound to; ``readable`` is False where the claim is missing, or the right."""

    volume: Volume | None
    readable: bool
    until: float


class ClaimedVolumes:
    """What is known of claims."""

    def __init__(self, api: ApiServer, clock: Clock = CLOCK) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    def of(self, pod: NeuronPod) -> tuple[Volume, ...] | None:
        """The volumes that the pod's claims are bound to; None where a claim was not read or cannot be.

        A claim without a volume gets one where the pod goes.
        """
        claims = list(self._claims(pod))
        if not all(known and known.readable for known in claims):
            return None
        return tuple(known.volume for known in claims if known and known.volume)

    def are_bound(self, pod: NeuronPod) -> bool:
        """Whether each claim of the pod is known to have its volume."""
        return all(known and known.volume for known in self._claims(pod))

    def are_known(self, pod: NeuronPod) -> bool:
        """Whether the pod's claims were read lately, be it in vain."""
        return all(self._claims(pod))

    async def read(self, pods: Iterable[NeuronPod]) -> bool:
        """Read the claims that are not known; whether there were any.

        Raises:
            ClusterError: the server did not answer, or could not this time.
        """
        claims = {(pod.reference.namespace, name) for pod in pods for name in pod.rules.claims}
        unknown = [claim for claim in claims if self._get(claim) is None]
        for namespace, name in unknown:
            try:
                volume, readable = await self._read(namespace, name), True
            except ApiError as error:
                if not error.withheld:
                    raise
                _log.info("volume not read", extra={"claim": f"{namespace}/{name}", "error": str(error)})
                volume, readable = None, False
            until = self._clock.now() + (BOUND_SECONDS if volume else AGAIN_SECONDS)
            self._known[namespace, name] = _Known(volume, readable, until)
            if len(self._known) > MOST_CLAIMS:
                del self._known[next(iter(self._known))]
        return bool(unknown)

    async def _read(self, namespace: str, name: str) -> Volume | None:
        request = ApiRequest("GET", CLAIMS.item(name, namespace))
        claim = CLAIMS.decode(await send(self._api, request, timeout_seconds=REQUEST_SECONDS))
        if not claim.volume_name:
            return None
        request = ApiRequest("GET", PERSISTENT_VOLUMES.item(claim.volume_name))
        return PERSISTENT_VOLUMES.decode(await send(self._api, request, timeout_seconds=REQUEST_SECONDS)).volume

    def _claims(self, pod: NeuronPod) -> Iterator[_Known | None]:
        return (self._get((pod.reference.namespace, name)) for name in pod.rules.claims)

    def _get(self, claim: tuple[str, str]) -> _Known | None:
        known = self._known.get(claim)
        return known if known and self._clock.now() < known.until else None


async def volumes_of(api: ApiServer | None, pod: NeuronPod) -> tuple[Volume, ...] | None:
    """The volumes of one pod's claims as they are now; None where they cannot be known."""
    volumes = ClaimedVolumes(api) if api else None
    if volumes:
        with suppress(ClusterError):
            await volumes.read([pod])
    return volumes.of(pod) if volumes else None if pod.rules.claims else ()
