"""The random life of one node: pods come and go, and everything around them fails now and then.

The daemon's own parts decide: its inputs, its answers, its turns and its writes run as they are. Around them are models
of the kubelet, the API server and the hardware, on a virtual clock. The oracle is what replies really gave and whose
processes live: no core may be in two pods.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from random import Random

from neuron_plugin.allocation import ContainerKind, NodeInventory, PodUid, Rejection, Resource
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.allocation.requests import ContainerSpec, pod_request
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_device_manager import AllocationError
from neuron_plugin.topology import CoreMask, Unit, cores_in, valid_sets
from tests.plugin.life_cluster import NODE, AnyLife, LifePod, State, Violation, mirror_of, physical
from tests.plugin.life_kubelet import Kubelet, RefusedError
from tests.plugin.life_plugin import Mode, Plugin
from tests.plugin.life_watch import LifeHardware, check_metrics, check_node
from tests.plugin.world import ApiPod, uid_of
from tests.support.model_kubelet import RESOURCES

CALM_SECONDS = 20.0
"""How long nothing has gone wrong before a refusal needs a reason that really is one."""
MOST_PODS = 14


class Life(AnyLife):
    """One node for a while."""

    pauses = (0.0, 0.01, 0.1, 0.1, 0.3, 1.0)

    def __init__(self, mode: Mode, seed: int) -> None:
        super().__init__(seed, mode.lag_seconds)
        self.mode = mode
        self.pods: list[LifePod] = []
        self.hardware = LifeHardware(mode.geometry, mode.logical_core_size)
        self.inventory = self._healthy_inventory()
        numa = frozenset({0}) if mode.numa else None
        self.kubelet = Kubelet(self.chance, self.api, self.note, self._gave, self._readmitted, self._rejected, numa)
        self.kubelet.inventory = lambda: self.inventory
        self.plugin: Plugin | None = None
        self._troubled_at = 0.0
        self._hidden_until = float("-inf")
        self._freed: deque[tuple[float, int]] = deque()
        self._disabled_since: dict[int, float] = {}
        self._broken_since: dict[int, float] = {}
        if mode.inotify:
            self.kubelet.file.written = lambda: self._look_at(self.chance.random() * 0.005)
        self.actions = [
            (self.create, 20),
            (self.create_static, 4),
            (self.end, 8),
            (self.delete, 6),
            (self.delete_by_force, 2.5),
            (self.collect_garbage, 0.7),
            (self.remove_ended, 8),
            (self.remove_manifest, 3),
            (self.change_mirror, 3),
            (self.crash, 2),
            (self.list_pod_resources, 2),
            (self.scrape, 1),
            (self.flip_health, 1),
            (self.flip_disabled, 1 if mode.cluster else 0),
            (self.restart_kubelet, 0.5),
            (self.kill_plugin, 0.6),
            (self.lose_api, 0.3),
            (self.stall_watch, 0.5),
            (self.fail_a_write, 0.6),
            (self.damage_file, 0.15),
            (self.hide_file, 0.15),
            (self.change_lnc, 0.05 if mode.logical_core_size > 1 else 0),
        ]

    def _healthy_inventory(self) -> NodeInventory:
        size, geometry = self.mode.logical_core_size, self.mode.geometry
        return NodeInventory(geometry, tuple(range(geometry.device_count)), logical_core_size=size)

    # What the parts ask the life.

    def is_populated(self, uid: str) -> bool | None:
        if not self.mode.sees_cgroups:
            return None
        return any(pod.populated for pod in self.pods if pod.uid == uid)

    def logical(self, mask: int) -> CoreMask:
        """The logical cores that have any of these physical ones."""
        size = self.inventory.logical_core_size
        return CoreMask(
            sum(1 << core for core in range(mask.bit_length() // size + 1) if mask >> core * size & ((1 << size) - 1))
        )

    def _look_at(self, delay: float) -> None:
        def look() -> None:
            if self.plugin:
                self.plugin.node.look_at_checkpoint()

        self._loop.call_later(delay, look)

    def _gave(self) -> None:
        self.seen["given"] += 1
        self.check()
        cluster = self.plugin.daemon.cluster if self.plugin else None
        if cluster and not cluster.own_node.read.is_set() and self._loop.time() - self._troubled_at > CALM_SECONDS:
            self.violations.append(Violation("devices were given before it was known which are disabled"))

    def _readmitted(self, pod: LifePod) -> None:
        """The kubelet has admitted a pod from its own record, without asking the plugin.

        Where the plugin could not read that record it may have given the cores away, and nobody can help it.
        """
        self._excuse(pod, "admitted by a record that could not be read")

    def _excuse(self, pod: LifePod, why: str) -> None:
        """What a pod has is known to nobody but the kubelet, whose record could not be read: a fault too many."""
        given_away = any(other.mask & pod.mask for other in self.pods if other is not pod)
        unknown = self.plugin is None or not self.plugin.knows_what_it_has(pod, self.logical(pod.mask))
        if (unknown or given_away) and self._loop.time() - self._hidden_until < 120:
            self.seen[why] += 1
            pod.unseen = True

    def _rejected(self, pod: LifePod, spec: ContainerSpec, resource: str, error: AllocationError) -> None:
        """A refusal in calm conditions must have a reason in what really runs."""
        self.check()
        self.seen["refused by the plugin" if isinstance(error, RefusedError) else "refused by the kubelet"] += 1
        drawn_by_numa = self.mode.numa and isinstance(error, RefusedError)
        deleted = pod.removed or not (pod.static or pod.uid in self.api.pods)
        if deleted or drawn_by_numa or self._loop.time() - self._troubled_at < CALM_SECONDS:
            return
        geometry, unit = self.inventory.geometry, Resource(resource).unit
        known = self.plugin.node.snapshot.inventory if self.plugin and self.plugin.node.snapshot else self.inventory
        busy = physical(known, geometry.all_mask & ~known.healthy_mask) if known.geometry == geometry else 0
        busy |= physical(self.inventory, geometry.all_mask & ~self.inventory.healthy_mask)
        kinds = {each.name: each.kind for each in pod.containers if resource in each.limits}
        for other in self.pods:
            for mask in other.given.values() if other is not pod else ():  # also what ended init containers had
                busy |= mask
        for name, mask in pod.given.items():
            busy |= mask if kinds.get(name) is not ContainerKind.INIT else 0
        for _, mask in self._freed:
            busy |= mask
        for one in self.plugin.node.snapshot.inputs.hold_downs if self.plugin and self.plugin.node.snapshot else ():
            busy |= physical(self.inventory, one.mask) if self.is_populated(one.uid) is not False else 0
        count = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
        masks = (physical(self.inventory, geometry.mask_of(unit, (number,))) for number in range(count))
        if sum(not mask & busy for mask in masks) >= int(spec.limits[resource]):
            self.violations.append(Violation(f"{pod} was refused without a reason: {error}"))

    def state(self) -> list[str]:
        """What there is at the moment, for whoever looks into a violation."""
        lines = []
        for pod in self.pods:
            given = {name: f"{self.logical(mask):b}" for name, mask in pod.given.items()}
            names = ("processes", "populated", "removed", "unrecorded", "unseen")
            flags = [name for name in names if getattr(pod, name)]
            lines.append(f"{pod} {pod.state.name} given={given} {' '.join(flags)}")
        if self.plugin and (snapshot := self.plugin.node.snapshot):
            inputs = snapshot.inputs
            lines += [f"ledger {one.pod} {one.container} {one.mask:b}" for one in snapshot.ledger.allocations]
            lines += [f"hold-down {one.uid[:8]} {one.mask:b} since {one.since:.3f}" for one in inputs.hold_downs]
            lines += [f"recorded {entry}" for entry in inputs.recorded.entries.values()]
            lines += [f"pending {one}" for one in inputs.pending]
        return lines

    # The course of things.

    def begin(self) -> None:
        self.kubelet.start(self.pods)
        self.plugin = Plugin(self)
        self.trouble()

    def check(self) -> None:
        """No core is in two pods, and none of a disabled or broken device in a new one."""
        now, total = asyncio.get_running_loop().time(), 0
        window = 15.0 if self.mode.sees_cgroups else 50.0
        while self._freed and now - self._freed[0][0] > window:
            self._freed.popleft()
        disabled = self.plugin.node.snapshot.inventory.disabled if self.plugin and self.plugin.node.snapshot else ()
        self._disabled_since = {device: self._disabled_since.get(device, now) for device in disabled}
        kept_back = (*self._disabled_since.items(), *self._broken_since.items())
        closed = {device for device, since in kept_back if now - since > 1.0}
        closed_mask = physical(self.inventory, self.inventory.geometry.devices_mask(closed))
        for pod in self.pods:
            if pod.static and pod.unrecorded and not self.mode.sees_cgroups:
                pod.unseen = True  # only its cgroup says when it has ended
            mask = pod.mask
            if pod.mask & closed_mask & ~pod.ever_given:
                self.violations.append(Violation(f"{pod} was given a disabled or broken device: {closed}"))
            pod.ever_given |= pod.mask_of_all_given
            if mask & total:
                others = [f"{other} {other.state}" for other in self.pods if other is not pod and other.mask & mask]
                self.violations.append(
                    Violation(f"cores {self.logical(mask & total):b} of {pod} {pod.state} are also in {others}")
                )
            total |= mask
            self._check_containers(pod)
            kept = pod.mask_of_all_given | (pod.ever_given if pod.processes else 0)  # also of a lost record
            if freed := pod.last_mask & ~kept:
                self._freed.append((now, freed))
            pod.last_mask = kept
        self.pods = [
            pod for pod in self.pods if pod.last_mask or pod.populated or pod.admitting or not self._is_over(pod)
        ]
        if self.violations:
            raise self.violations[0]

    def _check_containers(self, pod: LifePod) -> None:
        """Sidecars and apps share no core; only what plain init containers had is used again."""
        lasting = 0
        for spec in pod.containers:
            if pod.given.get(spec.name, 0) & lasting and not pod.removed:
                self.violations.append(Violation(f"containers of {pod} share cores: {pod.given}"))
            if spec.kind is not ContainerKind.INIT:
                lasting |= pod.given.get(spec.name, 0)

    def _is_over(self, pod: LifePod) -> bool:
        uid = pod.mirror_uid if pod.static else pod.uid
        return (
            uid not in self.api.pods
            and pod.uid not in self.kubelet.pods
            and (pod.removed or pod.state in {State.STOPPED, State.REJECTED})
        )

    def trouble(self, seconds: float = 0.0) -> None:
        self._troubled_at = max(self._troubled_at, self._loop.time() + seconds)

    def _any(self, *states: State, static: bool | None = None) -> LifePod | None:
        found = [
            pod
            for pod in self.pods
            if pod.state in states and not pod.removed and not pod.leaving and static in {None, pod.static}
        ]
        return self.chance.choice(found) if found else None

    # Pods come.

    def containers(self) -> tuple[ContainerSpec, ...]:
        chance, geometry = self.chance, self.inventory.geometry
        shapes = ("a", "a", "a", "a", "a", "aa", "ia", "ia", "sa", "iia", "isa", "iaa")
        first = chance.choice(tuple(Resource))
        specs = []
        for place, kind in enumerate(chance.choice(shapes)):
            resource = first if chance.random() < 0.8 else chance.choice(tuple(Resource))
            most = geometry.device_count if resource.unit is Unit.DEVICE else geometry.cores_per_device * 2
            counts = [count for count in range(1, most + 1) if valid_sets(geometry, resource.unit, count)]
            count = min(chance.choice(counts) for _ in range(3))
            kinds = {"a": ContainerKind.APP, "i": ContainerKind.INIT, "s": ContainerKind.SIDECAR}
            specs.append(ContainerSpec(f"{kind}{place}", kinds[kind], {resource.value: str(count)}))
        return tuple(specs)

    def _fits(self, specs: tuple[ContainerSpec, ...]) -> bool:
        """Whether kube-scheduler would bind the pod here: it counts, by resource name."""
        asked: Counter[str] = Counter()
        for pod in [pod for pod in self.api.pods.values() if not pod.ended]:
            asked.update({part.resource.value: part.count for part in pod.requests})
        wanted: Counter[str] = Counter()
        for part in pod_request(specs):
            wanted[part.resource.value] += part.count
        return all(asked[name] + count <= len(self.kubelet.manager.healthy(name)) for name, count in wanted.items())

    def create(self) -> None:
        if not self.api.up or len(self.pods) >= MOST_PODS:
            return
        specs = self.containers()
        if not self._fits(specs) and self.chance.random() < 0.95:
            return
        annotations: dict[str, str] | None = {}
        if self.mode.extender and self.chance.random() < 0.85:
            annotations = self.api.assignment_for(specs)
            if annotations is None:
                return
        self._bind(specs, annotations or {})

    def _bind(self, specs: tuple[ContainerSpec, ...], annotations: dict[str, str]) -> None:
        taken = {pod.reference.name for pod in self.api.pods.values()}
        name = self.chance.choice([name for name in (f"pod-{n}" for n in range(40)) if name not in taken])
        self._numbers += 1
        pod = LifePod(name, uid_of(f"{name} {self._numbers}"), specs)
        self.pods.append(pod)
        self.api.put(ApiPod(name, specs, annotations, pod.uid))
        self.note(f"bound {pod} {annotations}")
        self.seen["bound"] += 1
        self._loop.call_later(self.chance.random() * 0.3, self.kubelet.deliver, pod)

    def create_static(self) -> None:
        """A manifest is put on the node; the same one has the same UID each time."""
        number = self.chance.randrange(4)
        name = f"static-{number}"
        uid = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        if any(pod.static and (pod.uid == uid) for pod in self.pods) or len(self.pods) >= MOST_PODS:
            return
        specs = Random(number)  # noqa: S311 - the manifest stays the same
        count = str(specs.choice((1, 1, 2)))
        if self.mode.geometry.block_sizes:
            count = "1"
        resource = specs.choice(tuple(Resource))
        kinds = [ContainerKind.INIT, ContainerKind.APP] if number == 3 else [ContainerKind.APP]
        pod = LifePod(
            name, uid, tuple(ContainerSpec(kind.value, kind, {resource.value: count}) for kind in kinds), static=True
        )
        self.pods.append(pod)
        self.note(f"manifest of {pod}")
        self.seen["static"] += 1
        self.kubelet.deliver(pod)
        if self.mode.cluster and self.chance.random() < 0.7:
            self._loop.call_later(self.chance.random() * 3, self._create_mirror, pod)

    def _create_mirror(self, pod: LifePod) -> None:
        if pod.removed or not self.api.up or pod.mirror_uid in self.api.pods or not self.kubelet.up:
            return
        for uid in [uid for uid, other in self.api.pods.items() if other.reference.name == pod.name]:
            self.api.remove(uid)
        self._numbers += 1
        pod.mirror_uid = uid_of(f"mirror {self._numbers}")
        self.api.put(mirror_of(pod))

    def change_mirror(self) -> None:
        pod = self._any(State.ADMITTED, State.RUNNING, static=True)
        if pod and self.mode.cluster and self.api.up:
            if pod.mirror_uid in self.api.pods:
                self.note(f"mirror of {pod} deleted")
                self.api.remove(pod.mirror_uid)
            else:
                self._create_mirror(pod)

    def _remove_orphaned_mirrors(self) -> None:
        """As the kubelet's housekeeping does."""
        mirrors = {pod.mirror_uid for pod in self.pods if not pod.removed}
        for uid in [uid for uid, pod in self.api.pods.items() if pod.static_uid]:
            if uid not in mirrors:
                self.api.remove(uid)

    # Pods go.

    def end(self) -> None:
        """All containers of a pod end by themselves."""
        if pod := self._any(State.RUNNING, static=False):
            self.note(f"{pod} ends")
            self._stop(pod)

    def _stop(self, pod: LifePod, shown_after: float = 0.0) -> None:
        if pod.state not in {State.BOUND, State.REJECTED}:
            pod.state = State.STOPPED
        self.kubelet.processes_end(pod)
        if pod.state is State.STOPPED:
            pod.given = {}
            phase = self.chance.choice(("Succeeded", "Failed"))
            self._loop.call_later(shown_after, partial(self.kubelet.report, pod, phase, running=False))
            self._loop.call_later(self.chance.random() * 0.2, self.kubelet.forget, pod)

    def remove_ended(self) -> None:
        if self.api.up and self.kubelet.up:
            self._remove_orphaned_mirrors()
        ended = [pod for pod in self.pods if pod.state in {State.STOPPED, State.REJECTED} and not pod.static]
        if ended and self.api.up:
            self.api.remove(self.chance.choice(ended).uid)

    def delete(self) -> None:
        """A pod is deleted; its containers have some seconds to end."""
        pod = self._any(State.RUNNING, State.ADMITTED, static=False)
        if pod and self.api.up and pod.uid in self.api.pods:
            self.note(f"{pod} is deleted")
            pod.leaving = True
            self.api.delete_pod("default", pod.name)
            self._loop.call_later(self.chance.choice((0.1, 1.0, 3.0)), self._delete, pod)

    def _delete(self, pod: LifePod) -> None:
        if not pod.removed and pod.state is not State.REJECTED:
            self._stop(pod)
            self.kubelet.report_end(pod)

    def delete_by_force(self) -> None:
        pod = self._any(State.BOUND, State.RUNNING, State.RUNNING, State.ADMITTED, static=False)
        if pod and self.api.up:
            self.note(f"{pod} is deleted by force")
            self.seen["deleted by force"] += 1
            self._vanish(pod)

    def _vanish(self, pod: LifePod) -> None:
        self.api.remove(pod.uid)
        self._loop.call_later(self.chance.random() * 0.3, self._forget, pod)

    def _forget(self, pod: LifePod) -> None:
        """The kubelet no longer has the pod; what runs of it is killed, and what was about to run may still start."""
        if pod.removed:
            return
        pod.removed = True
        self.kubelet.forget(pod)
        if pod.state is State.ADMITTED and self.chance.random() < 0.3:
            self._loop.call_later(self.chance.random(), self._start_late, pod)
        else:
            self._loop.call_later(self.chance.choice((0.1, 1.0, 3.0, 3.0, 20.0)), self.kubelet.processes_end, pod)

    def _start_late(self, pod: LifePod) -> None:
        self.note(f"{pod}, which was deleted, starts all the same")
        pod.processes = pod.populated = True
        self._loop.call_later(self.chance.uniform(0.1, 4), self.kubelet.processes_end, pod)

    def collect_garbage(self) -> None:
        """PodGC: the phase is Failed, then the object is gone, while processes run."""
        pod = self._any(State.RUNNING, static=False)
        if pod and self.api.up and pod.uid in self.api.pods and self.api.pods[pod.uid].life.started:
            self.note(f"{pod} is failed and deleted by PodGC")
            pod.leaving = True
            self.api.show(pod.uid, "Failed")  # the containers still run, and the status says so
            self._loop.call_later(self.chance.random(), self._vanish, pod)

    def remove_manifest(self) -> None:
        pod = self._any(State.BOUND, State.RUNNING, State.RUNNING, State.ADMITTED, State.REJECTED, static=True)
        if pod:
            self.note(f"manifest of {pod} removed")
            self._forget(pod)
            if pod.mirror_uid:
                self.kubelet.report_end(pod)

    def crash(self) -> None:
        """A container restarts: the plugin hears of it only where the kubelet has lost its record."""
        pod = self._any(State.RUNNING)
        if pod and self.kubelet.up and pod.uid in self.kubelet.pods:
            spec = self.chance.choice([spec for spec in pod.containers if spec.kind is not ContainerKind.INIT])
            task = asyncio.create_task(self.kubelet.restart_container(pod, spec))
            self.kubelet._tasks.append(task)

    # Everything else.

    def scrape(self) -> None:
        if self.plugin and (snapshot := self.plugin.node.snapshot):
            check_metrics(self.plugin.daemon, snapshot)

    def list_pod_resources(self) -> None:
        """Another client of PodResources, from time to time in the middle of an Allocate."""
        self.kubelet.agents_list = self.chance.choice((0.0, 0.0, 0.5))
        if self.kubelet.up:
            self.kubelet.manager.forget_pods(self.kubelet.active)

    def flip_health(self) -> None:
        device, now = self.chance.randrange(self.mode.geometry.device_count), self._loop.time()
        if self._broken_since.pop(device, None) is None and len(self._broken_since) < 2:
            self._broken_since[device] = now
        self._see(replace(self.inventory, unhealthy=dict.fromkeys(self._broken_since, "broken")))
        self.trouble(-CALM_SECONDS / 2)

    def flip_disabled(self) -> None:
        """An operator takes a device out of service, or puts it back."""
        device = self.chance.randrange(self.mode.geometry.device_count)
        disabled = set(self.inventory.disabled) ^ {device}
        if self.api.up and len(disabled) <= 2:
            self.seen["disabled"] += 1
            self._disable(disabled)
            self.trouble(-CALM_SECONDS / 2)

    def _disable(self, devices: Iterable[int]) -> None:
        """What an operator writes on the Node; the plugin finds it there."""
        self.inventory = replace(self.inventory, disabled=tuple(sorted(devices)))
        text = format_ids(self.inventory.disabled) or None
        self.api.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: text}}})

    def change_lnc(self) -> None:
        geometry, size = self.inventory.geometry, self.inventory.logical_core_size
        cores = geometry.cores_per_device * size
        size = 1 if size > 1 else self.mode.logical_core_size
        self.note(f"LNC {size}")
        self._see(
            replace(self.inventory, geometry=replace(geometry, cores_per_device=cores // size), logical_core_size=size)
        )
        self.seen["LNC"] += 1
        self.trouble(60)

    def _see(self, inventory: NodeInventory) -> None:
        self.inventory = inventory
        now = LifeHardware(inventory.geometry, inventory.logical_core_size, inventory.unhealthy)
        self.hardware.inventory, self.hardware.unhealthy = now.inventory, now.unhealthy
        if self.plugin and self.plugin.node.snapshot:
            self.plugin.daemon.hardware.see()

    def restart_kubelet(self) -> None:
        if self.kubelet.up:
            self.kubelet.stop()
            self.seen["kubelet restart"] += 1
            self.trouble(10)
            self._loop.call_later(self.chance.choice((0.2, 1.0, 5.0)), self._start_kubelet)

    def _start_kubelet(self) -> None:
        if not self.kubelet.up:
            self.kubelet.start(self.pods)
            for pod in self.pods:
                if pod.unrecorded:
                    self._excuse(pod, "lost from a record that could not be read")

    def kill_plugin(self) -> None:
        if self.plugin:
            self.note("plugin killed")
            self.seen["plugin kill"] += 1
            self.plugin.kill()
            self.plugin = None
            if self.kubelet.up:
                self.kubelet.disconnect()
            self.trouble(10)
            if self.chance.random() < 0.3:
                self._serve_by_another_plugin()
            self._loop.call_later(self.chance.choice((0.3, 1.0, 5.0)), self._start_plugin)

    def _start_plugin(self) -> None:
        if self.plugin is None:
            self.note("plugin started")
            self.plugin = Plugin(self)

    def _serve_by_another_plugin(self) -> None:
        """Another plugin serves a pod under one of our names, then ends."""
        if not (self.kubelet.up and self.api.up and self.mode.cluster):
            return
        free = self.inventory.healthy_mask & ~self.logical(
            reduce(or_, (pod.used | pod.mask_of_all_given for pod in self.pods), 0)
            | reduce(or_, (mask for _, mask in self._freed), 0)
        )
        devices = self.inventory.geometry.ids_of(Unit.DEVICE, free)
        resource = self.chance.choice((Resource.NEURON, Resource.NEURONDEVICE))
        uids = {pod.uid for pod in self.pods}
        taken = {each for entry in self.kubelet.manager.entries() if entry.resource == resource for each in entry.ids}
        devices = tuple(device for device in devices if str(device) not in taken)
        if not devices or self.kubelet.admitting or len(uids) >= MOST_PODS:
            return
        device = self.chance.choice(devices)
        self._numbers += 1
        name = f"other-{self._numbers}"
        specs = (ContainerSpec("app", ContainerKind.APP, {resource.value: "1"}),)
        pod = LifePod(name, uid_of(name), specs, state=State.ADMITTED)
        answer = pb.ContainerAllocateResponse(
            devices=[
                pb.DeviceSpec(host_path=f"/dev/neuron{device}", container_path=f"/dev/neuron{device}", permissions="rw")
            ]
        )
        answer.envs["OF"] = name
        response = answer.SerializeToString(deterministic=True)
        self.kubelet.remember(response, answer)
        self.kubelet.manager.record(pod.uid, "app", resource.value, [str(device)], response)
        self.kubelet.manager.restore()
        self.kubelet.file.put(self.kubelet.manager.checkpoint_bytes())
        pod.given["app"], pod.core_size = self.kubelet._masks[response]
        self.note(f"another plugin gave {pod} {resource} {device}")
        self.pods.append(pod)
        self.kubelet.pods[pod.uid] = pod
        self.api.put(ApiPod(name, specs, {}, pod.uid))
        self._loop.call_later(0.1, self.kubelet._start, pod, self.kubelet.process)

    def lose_api(self) -> None:
        if self.api.up:
            self.note("API server away")
            self.api.go_away()
            seconds = self.chance.choice((0.5, 3.0, 20.0))
            self.trouble(seconds)
            self._loop.call_later(seconds, self._restore_api)

    def _restore_api(self) -> None:
        self.note("API server back")
        self.api.forgive()

    def stall_watch(self) -> None:
        self.note("watch stalled")
        self.api.stalled_until = self._loop.time() + self.chance.choice((1.0, 10.0, 60.0))

    def fail_a_write(self) -> None:
        self.kubelet.write_fault = self.chance.choice(("fail", "stall", "late", "late"))
        self.trouble(15)

    def damage_file(self) -> None:
        """The file is lost or damaged, mostly under a kubelet's restart, which then begins with nothing."""
        self.note("checkpoint lost or damaged")
        self.kubelet.file.put(self.chance.choice((None, b'{"Data":', b'{"Version": 2}')))
        self.trouble(15)
        self.seen["lost file"] += 1
        if self.chance.random() < 0.7:
            self.restart_kubelet()

    def hide_file(self) -> None:
        """A future format, or no right to read the file."""
        self.note("checkpoint unreadable")
        self.kubelet.file.fault = "unknown format"
        seconds = self.chance.choice((1.0, 20.0, 60.0))
        self.trouble(seconds + 10)
        self._hidden_until = self._loop.time() + seconds
        self.seen["unreadable"] += 1
        self._loop.call_later(seconds, self._show_file)

    def _show_file(self) -> None:
        self.kubelet.file.fault = ""

    # Rest.

    async def calm(self, seconds: float) -> None:
        """Nothing happens any more, and all is well."""
        self.note("calm")
        self.api.forgive()
        self.api.stalled_until = 0.0
        self.kubelet.write_fault, self.kubelet.agents_list = "", 0.0
        self._show_file()
        self._broken_since.clear()
        self._see(replace(self.inventory, unhealthy={}))
        self._disable(())
        self._start_kubelet()
        self._start_plugin()
        until = self._loop.time() + seconds
        while self._loop.time() < until:
            await asyncio.sleep(0.5)
            self.api.forgive()
            self._remove_orphaned_mirrors()
            self.check()

    async def break_beneath(self, pod: LifePod) -> None:
        """A device of a live pod breaks: the kubelet counts it until the pod is deleted, and not from then on.

        Or the pod ends unannounced, and the next pod asks for all that the kubelet takes for free.
        """
        plugin, manager = self.plugin, self.kubelet.manager
        entries = [entry for entry in manager.entries() if entry.pod_uid == pod.uid and entry.ids]
        if plugin is None or plugin.node.snapshot is None or not entries:
            return
        entry = self.chance.choice(entries)
        number, unit = int(self.chance.choice(sorted(entry.ids))), Resource(entry.resource).unit
        per_device = self.inventory.geometry.cores_per_device if unit is Unit.CORE else 1
        self._broken_since[number // per_device] = self._loop.time()
        self.note(f"{entry.resource} {number} breaks beneath {pod}")
        self._see(replace(self.inventory, unhealthy={number // per_device: "broken"}))
        await asyncio.sleep(1)
        doubted = PodUid(pod.uid) in plugin.node.snapshot.inputs.doubted
        if not doubted and str(number) not in manager.healthy(entry.resource):
            raise Violation(f"{entry.resource} {number} of {pod} is counted twice")
        self.seen["broken and counted"] += not doubted
        if self.chance.random() < 0.5:
            taken = {each for other in manager.entries() if other.pod_uid != pod.uid for each in other.ids}
            count = len(manager.healthy(entry.resource) - taken)
            self._stop(pod, shown_after=self.chance.choice((0.0, 1.0, 5.0)))
            await asyncio.sleep(self.chance.random() * 0.3)
            if count:
                self._bind((ContainerSpec("app", ContainerKind.APP, {entry.resource: str(count)}),), {})
            return
        if self.mode.cluster and not pod.static and pod.uid in self.api.pods:
            pod.leaving = True
            self.api.delete_pod("default", pod.name)
            await asyncio.sleep(10 * (self.mode.lag_seconds + 0.1))
            if str(number) in manager.healthy(entry.resource):
                raise Violation(f"{entry.resource} {number} of {pod} is still counted, and {pod} is being deleted")
            self._delete(pod)

    async def rest(self) -> None:
        """With pods alive: the annotations say what the pods have, and the ledger has that and nothing else."""
        await self.calm(70)
        for _ in range(3):
            self.create()
        await self.calm(10)
        if pod := self._any(State.RUNNING):
            await self.break_beneath(pod)
            await self.calm(70)
        if self.mode.cluster:
            self._disable({self.chance.randrange(self.mode.geometry.device_count)})
            await self.calm(70)  # a watch that the server has refused again and again waits for up to 30 s and more
        self.seen["rest"] += 1
        snapshot = self.plugin.node.snapshot if self.plugin else None
        assert snapshot is not None
        mine = [pod for pod in self.pods if pod.used and not (pod.unrecorded or pod.unseen)]
        for pod in mine:
            entry = self.api.pods.get(pod.mirror_uid if pod.static else pod.uid)
            recounted = pod.core_size != self.inventory.logical_core_size
            if not self.mode.cluster or not entry or recounted or len(pod.given) < len(pod.containers):
                continue
            if self.kubelet.file.fault and any(spec.kind is ContainerKind.INIT for spec in pod.containers):
                continue  # PodResources does not list plain init containers, and half an assignment is not written
            assigned = assigned_allocations(entry, self.inventory.geometry)
            found = () if isinstance(assigned, Rejection) else assigned
            said = {one.container: physical(self.inventory, one.mask) for one in found}
            annotations = self.api.annotations(entry.uid)
            if said != pod.given or annotations.get("NEURON_ALLOCATED") != "true":
                raise Violation(f"{pod} is annotated {annotations} and has {pod.given}")
        self.seen["at rest"] += len(mine)
        needed = possible = 0
        for pod in self.pods:
            has = self.logical(pod.used)
            needed |= 0 if pod.unrecorded or pod.unseen else has
            geometry, recounted = self.inventory.geometry, pod.core_size != self.inventory.logical_core_size
            possible |= geometry.devices_mask(geometry.devices_touched(has)) if recounted else has
            possible |= self.logical(pod.ever_given) if pod.processes else 0  # of init containers, or of a lost record
            entry = self.api.pods.get(pod.mirror_uid if pod.static else pod.uid)
            if entry and pod.processes:  # what is annotated counts where the kubelet's record is lost
                assigned = assigned_allocations(entry, geometry)
                possible |= 0 if isinstance(assigned, Rejection) else mask_union(assigned)
        ledger = snapshot.ledger.used_mask
        if ledger & ~possible or needed & ~ledger:
            raise Violation(f"{needed:b} of {possible:b} are in use, the ledger has {ledger:b}")
        assert self.plugin
        holders = {int(core): pod.name for pod in mine for core in cores_in(self.logical(pod.used))}
        check_metrics(self.plugin.daemon, snapshot, holders)
        check_node(self.api, self.plugin.daemon, snapshot)

    async def quiet(self) -> None:
        """All pods end: nothing is in use, held down or unhealthy any more."""
        for pod in self.pods:
            if pod.static:
                self._forget(pod)
                self.kubelet.report_end(pod)
            elif not pod.removed and not pod.leaving:
                self._delete(pod)
        await self.calm(120)
        for pod in [pod for pod in self.pods if pod.uid in self.api.pods]:
            self.api.remove(pod.uid)
        await self.calm(60)
        self.seen["quiet"] += 1
        snapshot = self.plugin.node.snapshot if self.plugin else None
        assert snapshot is not None
        left = (snapshot.ledger.allocations, snapshot.inputs.hold_downs, snapshot.inputs.pending)
        if any(left):
            raise Violation(f"after everything has ended there is left {left}")
        for resource in RESOURCES:
            if unhealthy := self.kubelet.manager.devices(resource).keys() - self.kubelet.manager.healthy(resource):
                raise Violation(f"{resource} {sorted(unhealthy)} stay unhealthy")
            if not self.kubelet.manager.devices(resource):
                raise Violation(f"{resource} is not advertised")


async def live(mode: Mode, seed: int, steps: int, *, rest_every: int = 400) -> Life:
    """A whole life; a violation names the seed and shows what came before."""
    life, number = Life(mode, seed), 0
    try:
        life.begin()
        for number in range(1, steps + 1):
            await life.step()
            if number % rest_every == 0:
                await life.rest()
                if number % (2 * rest_every) == 0:
                    await life.quiet()
        await life.rest()
        await life.quiet()
    except Exception as error:
        before = "\n".join([*life.trace, *life.state()])
        error.add_note(f"seed {seed}, step {number}, {mode}; what happened last:\n{before}")
        raise
    return life
