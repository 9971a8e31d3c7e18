"""Parts of the network that nodes share, as a tree that follows from the nodes' labels, without configuration.

Every EKS node says where it is. There is its zone, then the network nodes above it from the broadest to the nearest
(``topology.k8s.aws/network-node-layer-N``, three or four of them). On Trn2u and Trn3 its UltraServer and its pair
follow. A level that no node has does not exist. A node without a label that others have is a domain by itself at that
level.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.allocation.keys import PREFIX

_LAYER = re.compile(r"topology\.k8s\.aws/network-node-layer-([1-9])")
_VENDOR = "neuron.amazonaws.com/"
ZONE, ULTRASERVER, PAIR, LEAF, NODE = "zone", "ultraserver", "pair", "leaf", "node"
_ZONE_KEYS = ("topology.kubernetes.io/zone",)
_ULTRASERVER_KEYS = (
    f"{PREFIX}ultraserver-server-id-4",
    f"{_VENDOR}ultraserver-server-id-4",
    "topology.k8s.aws/ultraserver-id",
    "topology.k8s.aws/capacity-block-id",
)
_PAIR_KEYS = (f"{PREFIX}ultraserver-server-id-2", f"{_VENDOR}ultraserver-server-id-2")
_NODE_ID_KEYS = tuple(tuple(f"{prefix}ultraserver-node-id-{size}" for prefix in (PREFIX, _VENDOR)) for size in (4, 2))
"""Label keys of a node's id in an UltraServer of four, and in a pair."""

Path = tuple[str, ...]
"""The domains of a node, the broadest first and the node itself last. A prefix of it names one domain."""


@dataclass(frozen=True, slots=True)
class NetworkLevel:
    """One level of the tree: its name and label keys; a node has one of the labels. The node level has no ``keys``."""

    name: str
    keys: tuple[str, ...]

    def value(self, labels: Mapping[str, str]) -> str:
        """The domain that these labels name; empty if none."""
        return next((labels[key] for key in self.keys if labels.get(key)), "")


NODE_LEVEL = NetworkLevel(NODE, ())
MOST_NODES_GONE = 1_000
"""Deleted nodes whose domains are still remembered."""


class Domains:
    """The tree. ``nodes`` is followed, not copied: ``forget`` names one that has changed, has come or is gone.

    ``named`` are node labels, broad to narrow, that replace the known ones.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo], named: Sequence[str] = ()) -> None:
        self._nodes = nodes
        self._named = tuple(NetworkLevel(key, (key,)) for key in named)
        self._present = Counter[str]()
        self._keys: dict[str, tuple[str, ...]] = {}
        self._levels: tuple[NetworkLevel, ...] | None = None
        self._paths: dict[str, Path] = {}
        self._above: dict[int, _Above] = {}
        self._numbers: dict[Path, int] = {}
        self._numbered: list[Path] = []
        self._empty = Counter[Path]()
        self._counted: dict[str, Path] = {}
        self._uncounted = set[str]()
        for name in nodes:
            self.forget(name)

    @property
    def levels(self) -> tuple[NetworkLevel, ...]:
        """The levels that exist, the broadest first; the last one is the node."""
        if self._levels is None:
            known = _known_levels(self._present)
            found = self._named or [level for level in known if any(map(self._present.__contains__, level.keys))]
            self._levels = (*found, NODE_LEVEL)
        return self._levels

    def path(self, name: str) -> Path:
        """The domains of a node, one for each level."""
        path = self._paths.get(name)
        if path is None:
            labels = self._nodes[name].node.rules.labels
            domains = (level.value(labels) or f"/{name}" for level in self.levels[:-1])
            path = self._paths[name] = (*domains, name)
        return path

    def shared(self, names: Iterable[str]) -> Path:
        """The lowest domain that has all of some nodes."""
        paths = list(map(self.path, names))
        return paths[0][: common_depth(paths)] if paths else ()

    def above(self, depth: int) -> Mapping[str, int]:
        """The domain of each node at this depth, as a number, so that nodes are counted fast."""
        return self._above.setdefault(depth, _Above(self, depth))

    def number(self, domain: Path) -> int:
        """The number of a domain."""
        known = self._numbers.get(domain)
        if known is None:
            known = self._numbers[domain] = len(self._numbered)
            self._numbered.append(domain)
        return known

    def numbered(self, number: int) -> Path:
        """The domain with this number."""
        return self._numbered[number]

    def depth_of(self, level: str) -> int | None:
        """The length of a path to a domain of this level, a name or a node label; None if there is no such level."""
        names = [known.name for known in self.levels]
        if level == LEAF:
            layers = [number for number, name in enumerate(names) if _LAYER.fullmatch(name)]
            return layers[-1] + 1 if layers else None
        for number, known in enumerate(self.levels):
            if level in {known.name, *known.keys} or (known is NODE_LEVEL and level == "kubernetes.io/hostname"):
                return number + 1
        return None

    def level_names(self) -> list[str]:
        """The names under which levels can be asked for, the broadest first."""
        names = [known.name for known in self.levels]
        leaf = self.depth_of(LEAF)
        return [*names[:leaf], *([LEAF] if leaf else []), *names[leaf or 0 :]] if leaf else names

    def rank_key(self, name: str) -> tuple[Path, int, Path, int, str]:
        """The sort key of nodes: by domain, and in an UltraServer by node id.

        The node ids of an UltraServer are the order of its ring, and come before the names of its pairs.
        """
        labels, path = self._nodes[name].node.rules.labels, self.path(name)[:-1]
        in_four, in_pair = (
            next((int(labels[key]) for key in keys if labels.get(key, "").isdecimal()), 0) for keys in _NODE_ID_KEYS
        )
        servers = (
            depth for depth, level in enumerate(self.levels, 1) if not {*level.keys}.isdisjoint(_ULTRASERVER_KEYS)
        )
        return path[: next(servers, None)], in_four, path, in_pair, name

    def forget(self, name: str) -> None:
        """This node has changed."""
        info = self._nodes.get(name)
        keys = tuple(_known_keys(info.node.rules.labels)) if info and info.inventory else ()
        before = self._keys.pop(name, ())
        if keys:
            self._keys[name] = keys
        if keys != before:
            known = set(self._present)
            self._present.subtract(before)
            self._present.update(keys)
            self._present = +self._present
            if known != set(self._present):
                self._levels = None
                self._paths.clear()
                self._above.clear()
                self._empty.clear()
                self._counted.clear()
                self._uncounted.update(self._nodes)
        if len(self._numbered) > len(self.levels) * (2 * len(self._nodes) + MOST_NODES_GONE):
            self._above.clear()
            self._numbers.clear()
            self._numbered.clear()
        self._paths.pop(name, None)
        for numbers in self._above.values():
            numbers.pop(name, None)
        self._uncounted.add(name)

    def see_pods(self, name: str) -> None:
        """The pods of this node have changed."""
        self._uncounted.add(name)

    def empty_around(self, path: Path) -> tuple[int, ...]:
        """The number of nodes without Neuron pods in each domain around a domain or node, the nearest first.

        Among equals, the one with the least leaves most of the network whole.
        """
        for name in self._uncounted:
            for depth in range(1, len(before := self._counted.pop(name, ()))):
                self._empty[before[:depth]] -= 1
            info = self._nodes.get(name)
            if info and info.inventory and not info.ledger.allocations:
                now = self._counted[name] = self.path(name)
                self._empty.update(now[:depth] for depth in range(1, len(now)))
        self._uncounted.clear()
        return tuple([self._empty[path[:depth]] for depth in range(len(path) - 1, 0, -1)])


class _Above(dict[str, int]):
    """The number of the domain of each node at one level, found when it is first asked for."""

    def __init__(self, domains: Domains, depth: int) -> None:
        super().__init__()
        self._domains = domains
        self._depth = depth

    def __missing__(self, name: str) -> int:
        number = self[name] = self._domains.number(self._domains.path(name)[: self._depth])
        return number


def domains_of(labels: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """The domains in a node's labels, by level name, the broadest first."""
    levels = [NetworkLevel(key, (key,)) for key in named] or _known_levels(labels)
    return {level.name: value for level in levels if (value := level.value(labels))}


def _known_levels(keys: Iterable[str]) -> list[NetworkLevel]:
    """The levels that nodes with these labels may have, the broadest first."""
    layers = sorted(key for key in keys if _LAYER.fullmatch(key))
    return [
        NetworkLevel(ZONE, _ZONE_KEYS),
        *(NetworkLevel(key, (key,)) for key in layers),
        NetworkLevel(ULTRASERVER, _ULTRASERVER_KEYS),
        NetworkLevel(PAIR, _PAIR_KEYS),
    ]


def _known_keys(labels: Mapping[str, str]) -> Iterable[str]:
    fixed = (*_ZONE_KEYS, *_ULTRASERVER_KEYS, *_PAIR_KEYS)
    return [*(key for key in fixed if labels.get(key)), *(key for key in labels if _LAYER.fullmatch(key))]


def common_depth(paths: Iterable[Path]) -> int:
    """How many domains all the paths share."""
    listed = list(paths)
    if not listed:
        return 0
    depth = 0
    for domains in zip(*listed, strict=True):
        if len(set(domains)) > 1:
            break
        depth += 1
    return depth
