"""Places for the pods of a group, all at once: where the network is short, on few nodes, ranks in order.

The group gets the lowest domain that holds it, among several the tightest. Inside, it uses as few domains as possible,
level by level, and as few nodes. Ranks that follow each other fill a domain before the next one begins. All nodes are
of one type. Where pods have parts of nodes, every node gives the same sets in the same order: collectives address cores
by their local index.

The search walks over counts by domain, not over nodes. Groups with unlike pods, or with pods that rules keep apart, are
placed pod by pod, domain by domain.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from neuron_plugin.allocation import (
    Capacity,
    NeuronPod,
    NodeInfo,
    PodReference,
    PodRequest,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.cost import tie_rank
from neuron_plugin.allocation.group import NO_WISH, GroupMember, GroupName, TopologyWish, rank_key, rank_text
from neuron_plugin.allocation.narrowing import usable_mask
from neuron_plugin.allocation.placement import fitting, lasting_cores, place, placement_mask
from neuron_plugin.planning.choice import PreferenceOrder
from neuron_plugin.planning.domains import Domains, Path, common_depth
from neuron_plugin.planning.rules import node_scores
from neuron_plugin.planning.scene import Allowed, Place, Scene
from neuron_plugin.topology import CoreMask, Geometry

MOST_COMMON = 10
"""The commonest packings of nodes, each tried as it is."""
MOST_SEEDS = 4
"""The commonest windows of nodes, each the start of a packing; others are added one by one."""
MOST_MASKS = 256
"""The commonest masks of free cores, from which windows are chosen."""
MOST_PREFERENCES = 3
"""The highest preference scores that are kept apart."""
MOST_TRIES = 16
"""Plans that may leave no linked set to a pod without a node. Such a pod has a node soon; the group waits for it then.
"""
MOST_DOMAINS = 64
"""Domains in which unlike pods are tried one by one: at the broadest level that may hold them, and at all others."""

Windows = tuple[CoreMask, ...]
"""Disjoint sets of one node, one for each pod there."""


class _Free(NamedTuple):
    """A node's room for equal pods: the cores that they may have, the sets, and the sets that fit at once."""

    mask: CoreMask
    sets: Windows
    packed: Windows


class _Kind(NamedTuple):
    """Nodes with the same free sets, and room for equally many pods by kube-scheduler's counts."""

    free: _Free
    room: int
    names: Collection[str]


_Pools = Mapping[tuple[Geometry, str], Mapping[Capacity, AbstractSet[str]]]
"""Nodes by the values that all pods of a group must share, and by capacity."""


class _Counted(enum.Enum):
    """Where to count the pods that fit of a group that does not fit as a whole."""

    NOT = "not"
    LARGEST = "largest"
    """In the domain that holds the most, for the message."""
    EVERYWHERE = "everywhere"
    """For a group that may be smaller."""


_Option = tuple[tuple[float, ...], list[tuple[str, Windows]]]
"""The score of a choice of nodes, the least is best, and the windows of each node in the order of the ranks."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A place for each pod, and the lowest domain that all of the group share."""

    places: Mapping[PodUid, Place]
    domain: Path = ()


@dataclass(frozen=True, slots=True)
class GroupShort:
    """Why a group does not fit. ``most`` is how many of its pods would fit together, on nodes of a ``geometry``."""

    reason: str
    most: int = 0
    geometry: Geometry | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The place of a placed pod of the group: others come near it, on hardware of the same type, with the same sets."""

    node: str
    mask: CoreMask


def anchors_of(scene: Scene, group: GroupName) -> list[Anchor]:
    """Where pods of a group are already."""
    return [
        Anchor(name, mask)
        for pod in scene.cluster.members_of(group)
        for name in {pod.place, pod.node} - {""}
        if (info := scene.cluster.nodes.get(name)) and (mask := info.ledger.mask_of(pod.uid))
    ]


def place_group(
    scene: Scene,
    pods: Sequence[NeuronPod],
    *,
    least: int = 0,
    wish: TopologyWish = NO_WISH,
    anchors: Sequence[Anchor] = (),
    says_most: bool = True,
) -> GroupPlan | GroupShort:
    """A place for each waiting pod of a group, in the order of their ranks, and for at least ``least`` of them.

    Pods beyond ``least`` may be left out, the last first. A pod gets the place that is kept for it. With ``says_most``,
    the search counts how many pods of a group that does not fit would fit.
    """
    trial = scene.fork(pods[0].group)
    kept = _take_kept_places(trial, pods, anchors)
    others = [pod for pod in pods if pod.uid not in kept]
    anchors = [*anchors, *(Anchor(node, placement_mask(placement)) for node, placement in kept.values())]
    search = _Search(trial, wish, anchors)
    if search.problem:
        return GroupShort(search.problem)
    least = min(least or len(pods), len(pods))
    number, most = len(others), 0
    while len(kept) + number >= least:
        counted = _Counted.EVERYWHERE if len(kept) + number > least else _Counted.LARGEST if says_most else _Counted.NOT
        found = search.place(others[:number], counted) if number else {}
        if isinstance(found, dict):
            places = {**kept, **found}
            if not places:
                break
            nodes = (*(node for node, _ in places.values()), *(anchor.node for anchor in anchors))
            return GroupPlan(places, trial.choices.domains.shared(nodes))
        most = max(most, len(kept) + found)
        number = min(number - 1, found)
    return GroupShort(search.why(len(others)), most, search.largest if most else None)


def domains_for(scene: Scene, wish: TopologyWish, anchors: Sequence[Anchor]) -> list[frozenset[str]]:
    """The nodes of each domain that may hold a group: domains of its required level, else all nodes at once.

    Domains with the most free cores come first; at most ``MOST_DOMAINS`` are given.
    """
    if not wish.required:
        return [frozenset(scene.cluster.nodes)]
    domains, parts = scene.choices.domains, defaultdict[object, set[str]](set)
    depth = domains.depth_of(wish.required)
    for name, info in scene.cluster.nodes.items():
        label = info.node.rules.labels.get(wish.required)
        if depth is not None or label is not None:
            parts[domains.path(name)[:depth] if depth is not None else label].add(name)
    free = {name: info.free_mask.bit_count() for name, info in scene.cluster.nodes.items()}
    holding = [frozenset(names) for names in parts.values() if all(anchor.node in names for anchor in anchors)]
    return sorted(holding, key=lambda names: (-sum(map(free.__getitem__, names)), min(names)))[:MOST_DOMAINS]


def members_to_come(
    template: NeuronPod, leader: NeuronPod, members: Iterable[NeuronPod], least: int
) -> list[NeuronPod]:
    """Hypothetical pods of a leader's group, with their future requests: they are made once it is placed or runs.

    In a group of several Jobs or replicas each has a leader, and all have equally many pods.
    """
    group, member, made = leader.group or ("", ""), leader.member, list[NeuronPod]()
    ranks = {pod.member.rank: pod.member.leads for pod in members if pod.member and pod.member.rank}
    leading = sorted({rank[:-1] for rank, leads in ranks.items() if leads}) or [()]
    for rank in ((*first, number) for first in leading for number in range(least // len(leading))):
        if member and rank not in ranks:
            to_come = GroupMember(group, member.size, rank, wish=member.wish)
            reference = PodReference(PodUid(rank_key(group, rank)), group[0], f"{group[1]} rank {rank_text(rank)}")
            made.append(replace(template, reference=reference, member=to_come))
    return made


def spare_nodes(scene: Scene, pod: NeuronPod) -> list[NodeInfo]:
    """The nodes without Neuron pods that a pod of a group may go to, the nearest to all its pods first.

    They are of the group's type, and in the domain that it requires.
    """
    search = _Search(scene, scene.cluster.wish_of(pod), anchors_of(scene, pod.group or ("", "")))
    return [] if search.problem else search.spare_nodes(pod)


def _take_kept_places(trial: Scene, pods: Iterable[NeuronPod], anchors: Sequence[Anchor]) -> dict[PodUid, Place]:
    """Put the places kept for these pods into the scene. On a spare node they get the group's sets elsewhere."""
    places, windows = dict[PodUid, Place](), sorted({anchor.mask for anchor in anchors})
    for pod in pods:
        for kept in trial.cluster.kept_for(pod):
            if kept.node not in trial.cluster.nodes or kept.node not in trial.allowed(pod):
                continue
            masks = [kept.mask] if kept.lent_below is None or not windows else windows
            placed = next(filter(None, (trial.place_in(pod, kept.node, mask) for mask in masks)), None)
            if placed:
                places[pod.uid] = kept.node, placed
                trial.put(pod, kept.node, placed)
                break
    return places


class _Search:
    """One group's search. ``problem`` names a wish of the group that no node meets."""

    def __init__(self, scene: Scene, wish: TopologyWish, anchors: Sequence[Anchor]) -> None:
        self._scene = scene
        self._wish = wish
        self._anchors = anchors
        self._domains: Domains = scene.choices.domains
        self.problem = ""
        self._required = self._depth(wish.required)
        self._slice = self._depth(wish.slice_level) if wish.slice_size else 0
        self.largest: Geometry | None = None
        """The type of node that holds the most pods, if none holds all."""
        self._held: Counter[str] | None = None
        """How many pods the domains of the required level hold, if none holds all."""
        self._most = dict[str, int]()
        """How many pods of the group nodes take at most, so that pods without a node find a linked set there."""

    def _depth(self, level: str) -> int:
        """The length of a path to a domain of the level; 0 for no level, and for a label that is no level."""
        if not level:
            return 0
        depth = self._domains.depth_of(level)
        if depth is None and level == self._wish.required and any(map(self._value, self._scene.cluster.nodes)):
            return 0
        if depth is None:
            known = ", ".join(self._domains.level_names())
            self.problem = f"no node has the topology level {level}; there are {known}"
        return depth or 0

    def _value(self, name: str) -> str:
        """The node's value of the label that all pods of the group must share."""
        return self._scene.node(name).node.rules.labels.get(self._wish.required, "")

    def why(self, pods: int) -> str:
        """Why the last group did not fit."""
        if self._held is None:
            return ""
        where = f"in one {self._wish.required}{', that of its other pods' if self._anchors else ''}"
        most = sorted(self._held.items(), key=lambda one: (-one[1], one[0]))[:3]
        named = ", ".join(f"{domain} has {count}" for domain, count in most) or "none has any"
        return f"it needs room for {pods} pod{'s' if pods > 1 else ''} {where}; {named}"

    def place(self, pods: Sequence[NeuronPod], counted: _Counted) -> dict[PodUid, Place] | int:
        """A place for each pod; or how many would fit together, counted as ``counted`` says.

        Each pod that was handed to its scheduler without a node is left one linked set, on any node.
        """
        self._most.clear()
        for _ in range(MOST_TRIES):
            found = self._place(pods, counted)
            if not isinstance(found, dict):
                return found
            if not (left := self._scene.without_room([(pod, found[pod.uid]) for pod in pods])):
                return found
            self._take_less(left, pods[0], Counter(name for name, _ in found.values()))
        return 0

    def _take_less(self, names: Iterable[str], pod: NeuronPod, taken: Mapping[str, int]) -> None:
        """On these nodes, and on those of equal capacity that pods without a node may go to, place one pod less."""
        scene = self._scene
        coming = [scene.allowed(others[0]) for others in scene.alike(scene.roaming)]
        by_capacity = scene.fitting(pod)
        for name in names:
            capacity = scene.node(name).capacity
            equals = by_capacity.get(capacity, set()) if isinstance(capacity, Capacity) else ()
            for other in {name, *(one for one in equals if any(one in allowed for allowed in coming))}:
                self._most[other] = min(self._most.get(other, taken[name]), taken[name] - 1)

    def _place(self, pods: Sequence[NeuronPod], counted: _Counted) -> dict[PodUid, Place] | int:
        pools = self._pools(pods)
        for preferred in self._preferred(pods, pools):
            found = self._place_among(pods, preferred, _Counted.NOT)
            if isinstance(found, dict):
                return found
        return self._place_among(pods, pools, counted)

    def _preferred(self, pods: Sequence[NeuronPod], pools: _Pools) -> Iterator[_Pools]:
        """The nodes that the pods prefer: first only the most preferred, then more of them.

        A group that has begun comes near to its pods instead.
        """
        rules, choices = {pod.rules for pod in pods}, self._scene.choices
        if self._anchors or self._scene.cluster.preferences is PreferenceOrder.TIES:
            return
        if not any(own.preferences.nodes or choices.unwilling(own) for own in rules):
            return
        names = chain.from_iterable(chain.from_iterable(pool.values()) for pool in pools.values())
        nodes = {name: self._scene.node(name).node.rules for name in names}
        scores = sum((Counter(node_scores(own, nodes)) for own in rules), Counter[str]())
        for least in sorted({scores[name] for name in nodes}, reverse=True)[:-1][:MOST_PREFERENCES]:
            liked = {
                kind: {capacity: {name for name in some if scores[name] >= least} for capacity, some in pool.items()}
                for kind, pool in pools.items()
            }
            yield {kind: {key: some for key, some in pool.items() if some} for kind, pool in liked.items()}

    def _place_among(self, pods: Sequence[NeuronPod], pools: _Pools, counted: _Counted) -> dict[PodUid, Place] | int:
        first = pods[0]
        alike = all(pod.requests == first.requests and pod.rules == first.rules for pod in pods)
        most = 0
        best: tuple[tuple[float, ...], dict[PodUid, Place]] | None = None
        for (geometry, _), nodes in sorted(pools.items(), key=_smallest_first):
            found = self._place_alike(pods, nodes) if alike else None
            may_differ = not alike or first.rules.depends_on_pods or self._wish.any_window
            if not isinstance(found, tuple) and may_differ:
                names = set(chain.from_iterable(nodes.values()))
                found = self._place_one_by_one(pods, names, geometry, counted)
            if isinstance(found, tuple):
                best = min(best, found, key=lambda one: one[0]) if best else found
            elif (held := found or 0) > most:
                most, self.largest = held, geometry
        return best[1] if best else most

    def _pools(self, pods: Sequence[NeuronPod]) -> _Pools:
        """The nodes that some of the pods may go to, by the values that the whole group must share, and by capacity.

        These values are the node's type, and a label that the group requires and that is no level of the network.
        """
        types = {
            info.inventory.geometry for anchor in self._anchors if (info := self._info(anchor.node)) and info.inventory
        }
        shares_label = bool(self._wish.required and not self._required)
        values = {self._value(anchor.node) for anchor in self._anchors if self._info(anchor.node)}
        pools = defaultdict[tuple[Geometry, str], dict[Capacity, set[str]]](dict)
        for pod in {(pod.requests, pod.rules): pod for pod in pods}.values():
            for capacity, fit in self._scene.fitting(pod).items():
                names = {name for name in fit if self._most.get(name, 1)} if self._most else fit
                if types and capacity.geometry not in types:
                    continue
                if not shares_label:
                    pool = pools[capacity.geometry, ""]
                    pool[capacity] = pool[capacity] | names if capacity in pool else names
                for name in names if shares_label else ():
                    if (value := self._value(name)) and (not types or value in values):
                        pools[capacity.geometry, value].setdefault(capacity, set()).add(name)
        return pools

    def _info(self, name: str) -> NodeInfo | None:
        return self._scene.node(name) if name in self._scene.cluster.nodes else None

    def spare_nodes(self, pod: NeuronPod) -> list[NodeInfo]:
        """The nodes without Neuron pods that a pod of the group may go to, the nearest first."""
        near, windows = self._domains, {anchor.mask for anchor in self._anchors}
        anchors = [near.path(anchor.node) for anchor in self._anchors if self._info(anchor.node)]
        found = dict[str, tuple[int, tuple[int, ...], str]]()
        for nodes in self._pools([pod]).values():
            for name in chain.from_iterable(nodes.values()):
                info, path = self._scene.node(name), near.path(name)
                depth = common_depth([*anchors, path])
                is_whole = not (info.ledger.allocations or info.reservations or info.node.cordoned)
                has_windows = all(info.free_mask & window == window for window in windows)
                placed = is_whole and has_windows and depth >= self._required and self._scene.place(pod, name)
                if placed and self._scene.leaves_room(pod, (name, placed)):
                    found[name] = -depth, near.empty_around(path), name
        return [self._scene.node(name) for name in sorted(found, key=found.__getitem__)]

    # Equal pods: counts by domain.

    def _place_alike(
        self, pods: Sequence[NeuronPod], nodes: Mapping[Capacity, AbstractSet[str]]
    ) -> tuple[tuple[float, ...], dict[PodUid, Place]] | int:
        wanted, kinds = len(pods), list[_Kind]()
        for capacity in sorted(nodes, key=lambda one: (one.free_mask, one.healthy_mask)):
            if (free := _free(capacity, pods[0].requests)).packed:
                kinds += self._by_room(pods[0], free, nodes[capacity])
        if on_one_node := self._place_on_one_node(pods, kinds):
            return on_one_node
        most, options = max((kind.room for kind in kinds), default=0), list[_Option]()
        by_name = {name: kind for kind in kinds for name in kind.names} if self._anchors else {}
        for pattern in self._patterns(kinds, wanted):
            union, size, begun = sum(pattern), len(pattern), self._begun(pattern, by_name)
            if begun is None:
                continue
            having = (kind for kind in kinds if union & kind.free.mask == union and kind.room >= size)
            supporting = [name for name in chain.from_iterable(kind.names for kind in having) if name not in begun]
            most = max(most, size * len(supporting) + sum(map(len, begun.values())))
            if chosen := self._choose(supporting, partial(self._cost, union), pattern, wanted, begun):
                options.append(chosen)
        for rank, assigned in sorted(options, key=lambda option: option[0]):
            places = self._assign(pods, assigned)
            if places is not None:
                return rank, places
        return min(most, wanted - 1)

    def _by_room(self, pod: NeuronPod, free: _Free, names: AbstractSet[str]) -> list[_Kind]:
        """Nodes grouped by free sets and by how many such pods kube-scheduler's counts allow: at least one."""
        most = len(free.packed)
        if most == 1:
            return [_Kind(free, 1, names)]
        by_room = defaultdict[int, list[str]](list)
        for name, beside in zip(names, self._scene.rooms(pod, names), strict=True):
            room = most if beside is None or beside > most else beside
            by_room[min(room, self._most.get(name, room))].append(name)
        return [_Kind(free, room, by_room[room]) for room in sorted(by_room) if room]

    def _place_on_one_node(
        self, pods: Sequence[NeuronPod], kinds: Iterable[_Kind]
    ) -> tuple[tuple[float, ...], dict[PodUid, Place]] | None:
        """The whole group on the node that has the least left afterwards."""
        own, request = {anchor.node for anchor in self._anchors}, pods[0].requests * len(pods)
        holding = [name for kind in kinds if kind.room >= len(pods) for name in kind.names if own <= {name}]
        for name in self._by_cost(holding):
            capacity = self._scene.node(name).capacity
            placed = capacity if isinstance(capacity, Rejection) else capacity.place(request)
            if isinstance(placed, Rejection):
                continue
            size = len(pods[0].requests)
            parts = [placed[start : start + size] for start in range(0, len(placed), size)]
            parts.sort(key=placement_mask)
            slots = [(name, placement_mask(part)) for part in parts]
            places = self._assign_slots(pods, slots)
            if places is not None:
                return (float(-len(self._domains.levels)), 1.0, 0.0, self._cost(0, name)[0]), places
        return None

    def _by_cost(self, names: Sequence[str]) -> list[str]:
        """Nodes in the order of use; among equals, the one that leaves most of the network whole comes first."""
        costs = {name: self._cost(0, name) for name in names}
        order = sorted(names, key=costs.__getitem__)
        equals = [name for name in order if costs[name][0] == costs[order[0]][0]]
        if len(equals) > 1:
            first = min(equals, key=lambda name: (self._domains.empty_around(self._domains.path(name)), name))
            order.remove(first)
            order.insert(0, first)
        return order

    def _patterns(self, kinds: Sequence[_Kind], wanted: int) -> list[Windows]:
        """The arrangements of windows that may be used on every node, those for the most pods first.

        Once some pods of the group are placed, the others get the same sets.
        """
        sets = sorted({one for kind in kinds for one in kind.free.sets})
        counts, packings = Counter[CoreMask](), Counter[Windows]()
        for kind in kinds:
            counts[kind.free.mask] += len(kind.names)
            packings[kind.free.packed] += len(kind.names)
        masks = dict(counts.most_common(MOST_MASKS))
        patterns, most = dict[Windows, None](), wanted
        if self._anchors and not self._wish.any_window:
            own = tuple(sorted({anchor.mask for anchor in self._anchors}))
            seeds, most = [own], wanted + len(self._anchors)
            patterns.update(dict.fromkeys(own[:size] for size in range(len(own), 0, -1)))
        else:
            patterns.update(dict.fromkeys(packed[:wanted] for packed, _ in packings.most_common(MOST_COMMON)))
            seeds = [(seed,) for seed in sorted(sets, key=lambda one: -_support(masks, one))[:MOST_SEEDS]]
        for seed in seeds:
            pattern: Windows = seed
            union, having = int(sum(seed)), masks
            patterns[pattern] = None
            while len(pattern) < most:
                having = {mask: count for mask, count in having.items() if union & mask == union}
                window = max((one for one in sets if not one & union), key=partial(_support, having), default=None)
                if window is None or not _support(having, window):
                    break
                pattern, union = tuple(sorted((*pattern, window))), union | window
                patterns[pattern] = None
        return sorted(patterns, key=lambda pattern: (-len(pattern), pattern))

    def _begun(self, pattern: Windows, by_name: Mapping[str, _Kind]) -> dict[str, Windows] | None:
        """The rest of the arrangement on nodes with pods of the group; None unless all of it is free."""
        begun, placed = dict[str, Windows](), defaultdict[str, set[CoreMask]](set)
        for anchor in self._anchors:
            placed[anchor.node].add(anchor.mask)
        for name, masks in placed.items():
            left = tuple(window for window in pattern if window not in masks)
            if not left or not masks.issubset(pattern):
                continue
            kind = by_name.get(name)
            if kind is None or sum(left) & ~kind.free.mask or kind.room < len(left):
                return None
            begun[name] = left
        return begun

    def _cost(self, union: int, name: str) -> tuple[float, str]:
        """The sort key of nodes in one domain: the most used first, so that empty nodes stay empty."""
        info = self._scene.node(name)
        capacity = info.capacity
        if isinstance(capacity, Rejection):
            return 0.0, name
        left = (capacity.free_mask & ~union).bit_count()
        return left + tie_rank(capacity.geometry, capacity.free_mask, len(info.ledger.by_pod)) / 1e6, name

    def _choose(
        self,
        supporting: Sequence[str],
        cost: Callable[[str], tuple[float, str]],
        pattern: Windows,
        wanted: int,
        begun: Mapping[str, Windows],
    ) -> _Option | None:
        """The tightest of the lowest domains that hold the group, and its nodes in the order of the ranks.

        Nodes that are ``begun`` are filled first.
        """
        size = len(pattern)
        needed = -(-(wanted - sum(map(len, begun.values()))) // size)
        depths = len(self._domains.levels)
        anchor_paths = [self._domains.path(anchor.node) for anchor in self._anchors if self._info(anchor.node)]
        per_slice = -(-self._wish.slice_size // size) if self._slice else 0
        if needed <= 0:
            depth = common_depth(anchor_paths)
            return ((float(-depth), 0.0, 0.0, 0.0), self._in_order(begun)) if depth >= self._required else None
        lowest = 0 if self._wish.anywhere else depths if needed == 1 else depths - 1
        for depth in range(lowest, self._required - 1, -1):
            above = self._domains.above(depth)
            held = counts = Counter(map(above.__getitem__, supporting))
            if per_slice and depth < self._slice:
                held = Counter()
                for part, count in Counter(map(self._domains.above(self._slice).__getitem__, supporting)).items():
                    whole = self._domains.number(self._domains.numbered(part)[:depth])
                    held[whole] += count // per_slice * per_slice
            own = {self._domains.number(path[:depth]) for path in anchor_paths}
            fits = {one: counts[one] for one, count in held.items() if count >= needed and own <= {one}}
            if not fits and depth == self._required and self._required:
                named = {self._domains.numbered(one)[-1]: count * size for one, count in counts.items()}
                self._held = (self._held or Counter()) | Counter(named)
            if fits:
                least = min(fits.values())
                equals = [self._domains.numbered(one) for one, count in fits.items() if count == least]
                domain = min(equals, key=lambda one: (self._domains.empty_around(one), one))
                number = self._domains.number(domain)
                paths = {name: self._domains.path(name) for name in supporting if above[name] == number}
                names = self._pick(paths, cost, depth, needed, per_slice)
                spare = sum(cost(name)[0] for name in names)
                rank = float(-depth), float(needed), float(least - needed), spare
                return rank, self._in_order({**begun, **dict.fromkeys(names, pattern)})
        return None

    def _in_order(self, windows: Mapping[str, Windows]) -> list[tuple[str, Windows]]:
        return [(name, windows[name]) for name in sorted(windows, key=self._domains.rank_key)]

    def _pick(
        self,
        paths: Mapping[str, Path],
        cost: Callable[[str], tuple[float, str]],
        depth: int,
        needed: int,
        per_slice: int,
    ) -> list[str]:
        """So many nodes of a domain, from as few of its parts as possible, level by level."""
        if depth >= len(self._domains.levels) - 1 or needed >= len(paths):
            return sorted(paths, key=cost)[:needed]
        parts = defaultdict[str, dict[str, Path]](dict)
        for name, path in paths.items():
            parts[path[depth]][name] = path
        unit = per_slice if per_slice and depth + 1 == self._slice else 1
        chosen = list[str]()
        left = {part: len(nodes) // unit * unit for part, nodes in parts.items()}
        while len(chosen) < needed and any(left.values()):
            missing = needed - len(chosen)
            enough = [part for part, count in left.items() if count >= missing]
            part = (
                min(enough, key=lambda one: (left[one], one)) if enough else max(left, key=lambda one: (left[one], one))
            )
            taken = min(missing, left.pop(part))
            chosen += self._pick(parts[part], cost, depth + 1, taken, per_slice)
        return chosen

    def _assign(self, pods: Sequence[NeuronPod], nodes: Sequence[tuple[str, Windows]]) -> dict[PodUid, Place] | None:
        """The pods, in the order of their ranks, on nodes and windows; None if a pod's rules forbid it."""
        return self._assign_slots(pods, [(name, window) for name, pattern in nodes for window in pattern])

    def _assign_slots(self, pods: Sequence[NeuronPod], slots: Sequence[tuple[str, int]]) -> dict[PodUid, Place] | None:
        scene, rules, places = self._scene, pods[0].rules, dict[PodUid, Place]()
        checks = rules.depends_on_pods or scene.population.keeps_any_off() or bool(rules.claims)
        trial = scene.fork() if checks else scene
        for pod, (name, window) in zip(pods, slots, strict=False):
            if checks and name not in trial.allowed(pod):
                return None
            placement = scene.place_in(pod, name, window)
            if placement is None:
                return None
            places[pod.uid] = name, placement
            if checks:
                trial.put(pod, name, placement)
        return places

    # Unlike pods: one by one, in one domain after the other.

    def _place_one_by_one(
        self, pods: Sequence[NeuronPod], nodes: set[str], geometry: Geometry, counted: _Counted
    ) -> tuple[tuple[float, ...], dict[PodUid, Place]] | int:
        asked = sum(lasting_cores(pod.requests, geometry) for pod in pods)
        free = {name: self._scene.node(name).free_mask.bit_count() for name in nodes}
        paths = {name: self._domains.path(name) for name in sorted(nodes)}
        anchor_paths = [self._domains.path(anchor.node) for anchor in self._anchors if self._info(anchor.node)]
        order = sorted(pods, key=lambda pod: (-sum(container.count for container in pod.requests), pod.reference.name))
        most, tried = 0, 0
        lowest = 0 if self._wish.anywhere else len(self._domains.levels)
        for depth in range(lowest, self._required - 1, -1):
            if depth == self._required:
                tried = 0
            by_domain = defaultdict[Path, list[str]](list)
            for name, path in paths.items():
                by_domain[path[:depth]].append(name)
            sizes = {domain: sum(free[name] for name in names) for domain, names in by_domain.items()}
            largest = max(sizes.values(), default=0)
            for domain in sorted(sizes, key=lambda one: (sizes[one], one)):
                is_apart = any(path[:depth] != domain for path in anchor_paths)
                is_largest = depth == self._required and sizes[domain] == largest
                counts_all = counted is _Counted.EVERYWHERE or (counted is _Counted.LARGEST and is_largest)
                if is_apart or (sizes[domain] < asked and (depth or not counts_all)) or tried >= MOST_DOMAINS:
                    continue
                tried += 1
                places = self._fill(order, set(by_domain[domain]), counts_all=counts_all)
                if len(places) == len(pods):
                    used = {name for name, _ in places.values()}
                    return (float(-depth), float(len(used)), float(sizes[domain] - asked), 0.0), places
                most = max(most, len(places))
        return most

    def _fill(self, pods: Sequence[NeuronPod], names: set[str], *, counts_all: bool) -> dict[PodUid, Place]:
        """Places of pods in a domain, up to the first pod without one; with ``counts_all`` of all that have one."""
        trial, places = self._scene.fork(), dict[PodUid, Place]()
        for pod in pods:
            allowed = Allowed(trial, pod, among_nodes=names)
            if pod.requests and (found := trial.best(pod, allowed=allowed)):
                trial.put(pod, *found)
                places[pod.uid] = found
            elif not counts_all:
                break
        return places


def _smallest_first(pool: tuple[tuple[Geometry, str], object]) -> tuple[int, str, str]:
    """The sort key of instance types that suit a group equally: the fewest cores first."""
    (geometry, value), _ = pool
    return geometry.core_count, geometry.instance_type, value


def _support(masks: Mapping[CoreMask, int], window: int) -> int:
    """How many nodes have a window; ``masks`` counts nodes by their free cores."""
    return sum(count for mask, count in masks.items() if window & mask == window)


@lru_cache(maxsize=4_096)
def _free(capacity: Capacity, request: PodRequest) -> _Free:
    """The room for copies of a request on a node, lowest ids first."""
    geometry, free, found = capacity.geometry, int(capacity.free_mask), list[CoreMask]()
    if len(request) == 1 and not request[0].amounts:
        container = request[0]
        usable = free & usable_mask(geometry, container, capacity.facts)
        sets, left = tuple(fitting(geometry, usable, container.resource.unit, container.count)), usable
        for mask in sets:
            if mask & left == mask:
                found.append(mask)
                left &= ~mask
        return _Free(CoreMask(usable), sets, tuple(found))
    facts = capacity.facts
    while not isinstance(placed := place(geometry, free, request * (len(found) + 1), facts), Rejection):
        part = CoreMask(placement_mask(placed) & ~sum(found))
        if not part:
            break
        found.append(part)
        if len(found) >= geometry.core_count:
            break
    return _Free(CoreMask(sum(found)), tuple(found), tuple(found))
