"""The node's devices as a ResourceSlice, for the allocator of claims.

One slice of fixed names in a fixed order, with the attributes of AWS's own driver, so that AWS's claim templates work
unchanged. It follows from the machine alone. Only taints change: with a device that leaves the slice its holder would
be forgotten, and a slice in another order wakes each waiting pod. There are no counters: kube-scheduler takes them for
devices that it then refuses (kubernetes#140436).

The kubelet deletes the slices of its node when it starts, and 30 s after a driver's socket is gone
(pkg/kubelet/cm/dra/plugin). So the slice is watched and written again. The slice that the server has kept is compared
with the sent slice: a server without device taints (before Kubernetes 1.36) drops them silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from neuron_plugin import __version__
from neuron_plugin.allocation import NodeInventory
from neuron_plugin.allocation.claims import (
    DRA_DRIVER,
    PLACED_TAINT,
    UNHEALTHY_TAINT,
    ClaimDevice,
    device_attributes,
    pool_of,
)
from neuron_plugin.backoff import CLOCK, NEVER, Backoff, every
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, Reflector, Scope
from neuron_plugin.cluster.api import JsonObject, send
from neuron_plugin.cluster.claims import RESOURCE_SLICES, ResourceSlice
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.telemetry import Problem

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
"""For each request."""
CONFLICT_SECONDS = 0.2
"""Before the next try after a conflict."""


def slice_spec(inventory: NodeInventory, node_name: str, driver: str, *, placed: bool) -> JsonObject:
    """The ``spec`` of the node's slice.

    ``placed``: the placement controller allocates claims, so a taint keeps kube-scheduler's own choice off.
    """
    devices = []
    for device, has in enumerate(device_attributes(inventory.geometry)):
        attributes: JsonObject = {
            name: {"string" if isinstance(value, str) else "int": value} for name, value in has.items()
        }
        attributes[f"{DRA_DRIVER}/draDriverVersion"] = {"version": __version__}
        if inventory.driver_version:
            attributes[f"{DRA_DRIVER}/neuronDriverVersion"] = {"string": inventory.driver_version}
        taints = [{"key": PLACED_TAINT, "effect": "NoSchedule"}] if placed else []
        if why := _why_tainted(inventory, device):
            taints.append({"key": UNHEALTHY_TAINT, "value": why, "effect": "NoSchedule"})
        entry: JsonObject = {"name": ClaimDevice(device).name, "attributes": attributes}
        devices.append({**entry, "taints": taints})
    pool = {"name": pool_of(node_name), "generation": 1, "resourceSliceCount": 1}
    return {"driver": driver, "nodeName": node_name, "pool": pool, "devices": devices}


def _why_tainted(inventory: NodeInventory, device: int) -> str:
    """Why a device is given to no new claim, as the value of a taint; empty if it may be."""
    if device in inventory.disabled:
        return "disabled"
    if device in inventory.held_down:
        return "held-down"
    if device in inventory.unhealthy:
        return "unhealthy"
    return "" if device in inventory.present else "missing"


class SliceKeeper:
    """Keeps the node's slice as the snapshot says, for as long as ``run`` runs.

    ``dropped`` is what the API server ignores of it.
    """

    def __init__(self, node_name: str, driver: str, counts: MetricCounts) -> None:
        self.dropped: tuple[str, ...] = ()
        self.published = False
        """Whether the API server shows the slice as it should be."""
        self._node_name = node_name
        self._driver = driver
        self._counts = counts
        self._spec: JsonObject | None = None
        self._owner: JsonObject | None = None
        self._look = asyncio.Event()

    @property
    def name(self) -> str:
        """The slice's name."""
        return f"{self._node_name}-{self._driver}"

    def want(self, spec: JsonObject, node_uid: str) -> None:
        """Have the slice say this from now on. The Node object owns it, so that it goes with the node."""
        owner: JsonObject | None = None
        if node_uid:
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._node_name, "uid": node_uid, "controller": True}
        if (spec, owner) != (self._spec, self._owner):
            self._spec, self._owner = spec, owner
            self._look.set()

    async def run(self, api: ApiServer) -> None:
        """Follow the slices of this node and mend what differs, until cancelled."""
        scope = Scope(field_selector=f"spec.nodeName={self._node_name}")
        reflector: Reflector[ResourceSlice, ResourceSlice] = Reflector(
            api,
            RESOURCE_SLICES,
            lambda resource_slice: resource_slice if resource_slice.driver == self._driver else None,
            scope=scope,
            observer=self._counts,
        )
        reflector.subscribe(lambda _uid, _old, _new: self._look.set())
        backoff = Backoff(CLOCK.chance, first_seconds=0.2, longest_seconds=30.0)
        problem = Problem(logger, "the node's slice is not written yet")

        async def look() -> None:
            try:
                await self._mend(api, {found.name: found for found in reflector.values.values()})
                backoff.reset()
                problem.end()
            except ClusterError as error:
                pause = CONFLICT_SECONDS  # the watch is about to show what was written
                if not (isinstance(error, ApiError) and error.conflict):
                    problem.say(error)
                    pause = backoff.next_seconds()
                await asyncio.sleep(pause)
                self._look.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run(), name="slices")
            await reflector.synced.wait()
            await every(NEVER, look, self._look)

    async def _mend(self, api: ApiServer, slices: Mapping[str, ResourceSlice]) -> None:
        """Write the slice unless it is there as it should be, and remove others of ours."""
        if self._spec is None:
            return
        for name in slices.keys() - {self.name}:
            await send(api, ApiRequest("DELETE", RESOURCE_SLICES.item(name)), timeout_seconds=TIMEOUT_SECONDS)
        has = slices.get(self.name)
        wanted = self._spec
        differs = _differences(wanted, msgspec.json.decode(has.spec)) if has is not None else ["spec"]
        self.published = set(differs) <= set(self.dropped)  # what the server drops it would drop again
        if self.published:
            return
        metadata: JsonObject = {"name": self.name}
        if self._owner:
            metadata["ownerReferences"] = [self._owner]
        method, path = "POST", RESOURCE_SLICES.collection()
        if has is not None:
            method, path = "PUT", RESOURCE_SLICES.item(self.name)
            metadata["resourceVersion"] = has.resource_version
        body: JsonObject = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": wanted,
        }
        answer = await send(api, ApiRequest(method, path, body=body), timeout_seconds=TIMEOUT_SECONDS)
        self.dropped = tuple(_differences(wanted, msgspec.json.decode(RESOURCE_SLICES.decode(answer).spec)))
        self.published = True
        logger.info("slice written", extra={"slice": self.name})
        if self.dropped:
            logger.warning("the API server drops parts of the slice", extra={"parts": list(self.dropped)})


def _differences(wanted: object, has: object, path: str = "spec") -> list[str]:
    """Where what the server has is not what was sent. It adds a taint's time, and leaves empty lists out."""
    if isinstance(wanted, dict):
        parts = has if isinstance(has, dict) else {}
        keys = [*wanted, *(key for key in parts if key not in wanted and key != "timeAdded")]
        return [
            difference for key in keys for difference in _differences(wanted.get(key), parts.get(key), f"{path}.{key}")
        ]
    if isinstance(wanted, list):
        items = has if isinstance(has, list) else []
        if len(items) != len(wanted):
            return [path]
        pairs = enumerate(zip(wanted, items, strict=True))
        return [
            difference
            for place, (first, other) in pairs
            for difference in _differences(first, other, f"{path}[{place}]")
        ]
    return [] if wanted == has else [path]
