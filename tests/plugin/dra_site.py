"""A whole node for end-to-end tests of claims: as ``site``, with a kubelet, API server and scheduler that know them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec

from neuron_plugin.plugin.claims import PrepareTimes
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.settings import Mode
from neuron_plugin.simulation import AdmittedPod, KubeletContainer, KubeletPod, write_node
from neuron_plugin.simulation.api_server_kinds import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AnyJson,
)
from neuron_plugin.simulation.kubelet_dra import DraManager, DraManagerTimes
from neuron_plugin.simulation.resource_claims import allocations_on, claim_names, claims_of, reserve, sync_claims
from tests.plugin.site import _MEMORY, HASTY, NAMESPACE, NODE, Site, eventually, settings_for
from tests.plugin.world import uid_of
from tests.simulation.dra import claim_spec, device_class, linked
from tests.support.api_server import StandInApiServer
from tests.support.kubelet import KubeletOptions, StandInKubelet

KUBELET = DraManagerTimes(retry=0.1, watcher=0.05, health=0.1, wipe=0.5)


@dataclass
class ClaimSite(Site):
    """A site whose plugin is a driver of claims."""

    dra: DraManager = field(kw_only=True)
    api: StandInApiServer

    @asynccontextmanager
    async def daemon(self, *, registered: bool = True) -> AsyncIterator[NodeDaemon]:
        async with super().daemon(registered=registered) as daemon:
            if registered and self.settings.mode is Mode.DRA:
                assert daemon.kubelet.dra
                await eventually(daemon.kubelet.dra.registered.is_set)
                await eventually(lambda: self.settings.dra_driver in self.dra.drivers)
                await eventually(lambda: len(self.slices()) == 1 or self.api_is_down)
            yield daemon

    # Users and the scheduler.

    def template(self, name: str, spec: AnyJson) -> str:
        self.api.create(CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}, NAMESPACE)
        return name

    def claim(self, name: str, spec: AnyJson) -> str:
        self.api.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, NAMESPACE)
        return name

    def place(self, name: str, *templates: str, claim: str = "", uses: tuple[tuple[str, str], ...] = ()) -> KubeletPod:
        """A pod of one container is made, its claims are made and allocated, and it is bound here.

        It has a claim of each template, called like that, and one of its own name. ``uses`` are claims and requests.
        """
        sources = [{"name": each, "resourceClaimTemplateName": each} for each in templates]
        sources += [{"name": claim, "resourceClaimName": claim}] if claim else []
        uses = uses or tuple((str(each["name"]), "") for each in sources)
        used = [{"name": one} | ({"request": request} if request else {}) for one, request in uses]
        container = {"name": "app", "resources": {"claims": used}}
        spec = {"containers": [container], "resourceClaims": sources}
        metadata = {"name": name, "namespace": NAMESPACE, "uid": uid_of(name)}
        self.api.create_pod({"metadata": metadata, "spec": spec})
        sync_claims(self.api)
        pod = self.api.get(PODS, name, NAMESPACE)
        claims = claims_of(self.api, pod)
        reserve(self.api, pod, claims, allocations_on(self.api, claims, NODE))
        self.api.bind(NAMESPACE, name, node=NODE)
        made = KubeletPod(uid_of(name), NAMESPACE, name, (KubeletContainer("app", claims=uses),), claim_names(pod))
        self.kubelet_pods[name] = made
        return made

    async def start(self, name: str, *templates: str, claim: str = "") -> AdmittedPod:
        """`place` and run."""
        self.place(name, *templates, claim=claim)
        return await self.admit(name)

    async def admit(self, name: str) -> AdmittedPod:
        admitted = await super().admit(name)
        self.says_running(name)
        return admitted

    def says_running(self, name: str) -> None:
        running = {"name": "app", "started": True, "state": {"running": {}}}
        self.api.set_pod_status(NAMESPACE, name, {"phase": "Running", "containerStatuses": [running]})

    async def stop(self, name: str) -> None:
        """A pod is deleted: its containers end, its claims are given up, its object goes."""
        pod = self.kubelet_pods[name]
        self.end(name)
        await self.kubelet.unprepare(pod)
        sync_claims(self.api)

    # What there is.

    def slices(self) -> list[AnyJson]:
        return [
            each for each in self.api.objects(RESOURCE_SLICES) if each["spec"]["driver"] == self.settings.dra_driver
        ]


@asynccontextmanager
async def a_claim_site(
    instance_type: str = "trn1.32xlarge", *, mode: Mode = Mode.DRA, prepare_seconds: float = 20.0
) -> AsyncIterator[ClaimSite]:
    """A node of this type, with everything but the daemon running, and the templates ``one`` and ``four``.

    The plugin lets a claim wait for ``prepare_seconds`` before it refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="np-", dir=_MEMORY) as directory:
        root = Path(directory)
        for name in ("dp", "pr", "registry"):
            (root / name).mkdir()
        node = write_node(root / "node", instance_type, usage_counters=False)
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(StandInApiServer())
            api.create_node({"metadata": {"name": NODE}})
            api.create(DEVICE_CLASSES, device_class(), "")
            dra = DraManager(root, api, NODE, KUBELET)
            random = Random(1)  # noqa: S311 - the order of Go's maps
            kubelet = StandInKubelet(
                root / "dp",
                root / "pr",
                plugins_registry=root / "registry",
                random=random,
                options=KubeletOptions(watcher_seconds=KUBELET.watcher),
                cgroup_root=root / "cgroup",
                dra=dra,
                cdi_dir=root / "cdi",
            )
            await stack.enter_async_context(kubelet)
            settings = msgspec.structs.replace(settings_for(root, node, api, ()), mode=mode)
            times = replace(HASTY, prepare=PrepareTimes(wait=prepare_seconds, poll=0.02, reread=0.5))
            site = ClaimSite(node, kubelet, api, settings, times, dra=dra)
            site.template("one", claim_spec())
            site.template("four", linked(4))
            yield site


def numbers(admitted: AdmittedPod) -> dict[int, int]:
    """The devices of a pod's container: the number inside, and the host's."""
    nodes = admitted.container("app").devices
    return {
        int(each.container_path.removeprefix("/dev/neuron")): int(each.host_path.rpartition("neuron")[2])
        for each in nodes
    }
