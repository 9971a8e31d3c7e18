"""Reservations for waiting pods, or for ranks of groups, as they are written into the leader's Lease."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.allocation.group import GroupName, is_replica
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.resources import parse_ids, ranges
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import CoreMask, cores_in

RECORDS_KEY = "neuron-plugin.io/moves"
"""Annotation of the leader's Lease: the reservations, and the pods for which others were moved lately."""
MOST_PLAIN_BYTES, MOST_BYTES = 1 << 16, 250_000
"""Longer texts are compressed. An object may have 256 KiB of annotations: that is some four thousand records."""


class ReserveRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A reservation as the next leader reads it. ``cores`` are reserved on ``node``; ``at`` is in unix seconds.

    ``uid`` is the waiting pod's, or the name of a rank of a group, which has a "#". ``victims`` are UIDs, ``owners``
    the controllers of moved pods, as NAMESPACE/KIND/NAME. ``group`` is the group of the pod, rank or spare node, as
    NAMESPACE/NAME; ``lent_below`` as in ``Reservation``.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cores: str
    victims: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    at: float = 0.0
    group: str = ""
    lent_below: int | None = None

    @property
    def reservation(self) -> Reservation:
        """The reservation for the waiting pod, or for the rank."""
        pod = PodReference(PodUid(self.uid), self.namespace, self.name)
        return Reservation(pod, self.node, _mask_of(self.cores), self.lent_below)

    @property
    def is_spare(self) -> bool:
        """Whether it is a spare node of a group, not a rank's place."""
        return self.lent_below is not None

    @property
    def is_for_pod(self) -> bool:
        """Whether it is for one pod only, not for the next pod of its rank."""
        return "#" not in self.uid

    @property
    def group_name(self) -> GroupName:
        """The group of a rank."""
        namespace, _, name = self.group.partition("/")
        return namespace, name


@lru_cache(maxsize=4_096)
def cores_text(mask: CoreMask) -> str:
    """Cores as the text in a record."""
    return ranges(cores_in(mask))


@lru_cache(maxsize=4_096)
def _mask_of(cores: str) -> CoreMask:
    return CoreMask(sum(1 << core for core in parse_ids(cores)))


def write_records(records: Iterable[ReserveRecord]) -> str:
    """The records as written: JSON, compressed if it is long, because annotations are bounded.

    If that is still too long, the places of groups' pods are left out: these are being placed now. Moves that were
    begun, ranks and spare nodes stay.
    """
    records = [*records]
    text = msgspec.json.encode(records)
    if len(text) <= MOST_PLAIN_BYTES:
        return text.decode()
    packed = base64.b64encode(zlib.compress(text)).decode()
    others = [record for record in records if not (record.group and record.is_for_pod)]
    return packed if len(packed) <= MOST_BYTES or len(others) == len(records) else write_records(others)


def read_records(text: str) -> dict[ReserveRecord, Reservation]:
    """The records that ``write_records`` has written, each with its reservation.

    Raises:
        ValueError: it is none of that.
    """
    try:
        plain = text.encode() if text.startswith("[") else zlib.decompress(base64.b64decode(text))
        records = msgspec.json.decode(plain, type=tuple[ReserveRecord, ...])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"no records of reserves: {error}") from error
    return {record: record.reservation for record in records}


def see_reserves(state: ClusterState, text: str) -> None:
    """Show the leader's written reservations on a replica that does not lead, in place of those shown before.

    Reservations for placed pods, or for deleted groups, are left out: the leader will remove them soon.
    """
    try:
        records = read_records(text or "[]")
    except ValueError:
        records = {}
    kept = {record.uid: reservation for record, reservation in records.items() if _is_needed(record, state)}
    for key in state.reserved.keys() - kept.keys():
        state.release(key)
    for key, reservation in kept.items():
        if state.reserved.get(key) != reservation:
            state.reserve(reservation)


def _is_needed(record: ReserveRecord, state: ClusterState) -> bool:
    if record.is_for_pod:
        pod = state.pods.get(PodUid(record.uid))
        return pod is not None and not pod.place
    # The pods of a LeaderWorkerSet's replica are all made again, so its reservations last without any pod.
    return is_replica(record.group_name) or bool(state.members_of(record.group_name))


def is_sick(state: ClusterState, record: ReserveRecord) -> bool:
    """Whether a reserved device is not healthy, or its node unknown."""
    info = state.nodes.get(record.node)
    return info is None or info.inventory is None or bool(record.reservation.mask & ~info.inventory.healthy_mask)
