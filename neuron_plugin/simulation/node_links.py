"""The text of ``connected_devices`` as the driver composes it for each product.

Which devices are linked is geometry and stands in ``topology``; the order in which the driver names them, and when it
names none, is the driver's own business and is kept here so that a simulated tree has the very bytes.
Source: Neuron driver 2.24.7 and 2.25.4; captures of inf1.6xlarge, inf2.24xlarge and trn2.48xlarge.
"""

from __future__ import annotations

from collections.abc import Collection

_TORUS_SIZE = 16
_INF2_RING = 12
_INF2_LINE = 6

# Up, left, down, right: the order for Trainium1.
_TRN1 = tuple(
    (
        (device - 4) % 16,
        device - device % 4 + (device - 1) % 4,
        (device + 4) % 16,
        device - device % 4 + (device + 1) % 4,
    )
    for device in range(_TORUS_SIZE)
)

# Trainium2 and later: the firmware's port order, different for each place.
_TRN2 = (
    (12, 1, 3, 4),
    (0, 13, 5, 2),
    (14, 3, 1, 6),
    (2, 15, 7, 0),
    (8, 5, 7, 0),
    (4, 9, 1, 6),
    (10, 7, 5, 2),
    (6, 11, 3, 4),
    (4, 9, 11, 12),
    (8, 5, 13, 10),
    (6, 11, 9, 14),
    (10, 7, 15, 8),
    (0, 13, 15, 8),
    (12, 1, 9, 14),
    (2, 15, 13, 10),
    (14, 3, 11, 12),
)


def connected_devices_text(device_name: str, device: int, present: Collection[int], device_count: int) -> str:
    """What the driver prints for ``device`` while the devices ``present`` are there.

    ``device_count`` is how many the machine should have. From Trainium1 on the driver picks its table by how many it
    counted, so one missing chip leaves every list empty; Inferentia's is read from firmware, neighbour by neighbour.
    """
    match device_name:
        case "Inferentia":
            neighbours = _inf1(device, present, device_count)
        case "Inferentia2":
            neighbours = _inf2(device, len(present))
        case "Trainium1":
            neighbours = _torus(_TRN1, device, len(present))
        case _:
            neighbours = _torus(_TRN2, device, len(present))
    return ", ".join(map(str, neighbours)) + "\n"


def _inf1(device: int, present: Collection[int], device_count: int) -> tuple[int, ...]:
    """East neighbour first. inf1.6xlarge is a line [captured], inf1.24xlarge a ring [documented]."""
    east, west = device + 1, device - 1
    if device_count == _TORUS_SIZE:
        east, west = east % device_count, west % device_count
    return tuple(neighbour for neighbour in (east, west) if neighbour in present and neighbour != device)


def _inf2(device: int, counted: int) -> tuple[int, ...]:
    if counted == _INF2_RING:
        return (device - 1) % _INF2_RING, (device + 1) % _INF2_RING
    if counted == _INF2_LINE:
        return tuple(neighbour for neighbour in (device - 1, device + 1) if 0 <= neighbour < _INF2_LINE)
    return ()


def _torus(table: tuple[tuple[int, ...], ...], device: int, counted: int) -> tuple[int, ...]:
    if not counted or counted % _TORUS_SIZE:
        return ()
    block = device - device % _TORUS_SIZE
    return tuple(block + neighbour for neighbour in table[device % _TORUS_SIZE])
