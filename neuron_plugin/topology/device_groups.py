"""AWS's groups of devices and EFA interfaces, for claims that ask for devices and network together.

A group's id is a hash of the PCI addresses of the EFA interfaces beside its devices. So AWS's driver for EFA and a
driver of Neuron devices compute the same id. Addresses and hash: aws-neuron/connected-device-maps-over-efa-for-neuron
(2026-11). Only the types with EFA have groups.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache

GROUP_SIZES = (1, 4, 8, 16)
_ID_DIGITS = 16
"""Hexadecimal digits."""

_INTERFACES: Mapping[str, str] = {
    "trn1": "10:1a 10:1a a0:1a a0:1a 20:19 20:19 90:19 90:19 20:1a 20:1a 90:1a 90:1a 10:19 10:19 a0:19 a0:19",
    "trn1n": "10:17 10:1a a0:17 a0:1a 20:19 20:18 90:19 90:18 20:17 20:1a 90:17 90:1a 10:19 10:18 a0:19 a0:18",
    "trn2": "c9:00 b4:00 b3:00 ca:00 6c:00 57:00 56:00 6d:00 98:00 83:00 82:00 99:00 f5:00 e0:00 df:00 f6:00",
    "trn3": "be:00 a9:00 a8:00 bf:00 61:00 4c:00 4b:00 62:00 8d:00 78:00 77:00 8e:00 ea:00 d5:00 d4:00 eb:00",
    "trn3pds": "a9:00 a8:00 bf:00 be:00 d5:00 d4:00 eb:00 ea:00 4c:00 4b:00 62:00 61:00 78:00 77:00 8e:00 8d:00",
}
"""Bus and slot of the EFA interface beside each device, by device id; the domain is 0000, the function 0."""

_FAMILIES = {
    "trn1": "trn1",
    "trn1n": "trn1n",
    **dict.fromkeys(("trn2", "trn2n", "trn2e", "trn2u"), "trn2"),
    **dict.fromkeys(("trn3", "trn3p", "trn3s", "trn3pd98"), "trn3"),
    **dict.fromkeys(("trn3pds", "trn3-dev0", "trn3-dev1"), "trn3pds"),
}
_TYPE = re.compile(r"(?:ml\.)?([a-z0-9-]+)\.(?:32|48)xlarge")


@lru_cache(maxsize=64)
def device_groups(instance_type: str) -> tuple[Mapping[int, str], ...]:
    """For each device of a type, the ids of its groups by their size; empty for a type without EFA."""
    match = _TYPE.fullmatch(instance_type)
    family = _FAMILIES.get(match[1]) if match else None
    if family is None:
        return ()
    addresses = [f"0000:{slot}.0" for slot in _INTERFACES[family].split()]
    return tuple(
        {size: _group_id(addresses, device - device % size, size) for size in GROUP_SIZES}
        for device in range(len(addresses))
    )


def _group_id(addresses: list[str], first: int, size: int) -> str:
    """The id of a group: for one device its interface, else a hash of the sorted, unique interfaces."""
    if size == 1:
        return addresses[first]
    text = ",".join(sorted(set(addresses[first : first + size])))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]
