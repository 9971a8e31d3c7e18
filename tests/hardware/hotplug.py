"""Hot-plug as the kernel does it, played by umockdev: run under its preload library, one scenario by name.

A script and no test module, because the library has to be preloaded into a process of its own. It prints what
happened, a line each; the tests compare. umockdev's ``add_from_string`` makes a device and sends its uevent.
"""

from __future__ import annotations

# ruff: noqa: T201 - what a script prints is its result
import asyncio
import ctypes
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from neuron_plugin.hardware.events import InventoryWatcher, WatchPeriods, open_uevents
from neuron_plugin.hardware.inventory import Inventory, MachinePaths, read_inventory

DEADLINE_SECONDS = 10
ATTRIBUTES = {
    "connected_devices": "\\n",
    "dev": "243:{device}\\n",
    "reset": "1\\n",
    "info/architecture/arch_type": "NDv3\\n",
    "info/architecture/device_name": "Inferentia2\\n",
}


class Kernel:
    """The part of a kernel that umockdev plays."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libumockdev.so.0")
        self._library.umockdev_testbed_new.restype = ctypes.c_void_p
        self._testbed = ctypes.c_void_p(self._library.umockdev_testbed_new())

    def add(self, device: int, **attributes: str) -> None:
        """Make a device and announce it; ``core_count`` only if given."""
        texts = {**{name: text.format(device=device) for name, text in ATTRIBUTES.items()}, **attributes}
        self._add("neuron_device", f"neuron{device}", texts)

    def add_other(self) -> None:
        """Make and announce a device of another subsystem."""
        self._add("mem", "other", {"dev": "1:77\\n"})

    def set_attribute(self, device: int, name: str, text: str) -> None:
        """Let an attribute appear."""
        path = f"/sys/devices/virtual/neuron_device/neuron{device}".encode()
        self._library.umockdev_testbed_set_attribute(self._testbed, path, name.encode(), text.encode())

    def remove(self, device: int) -> None:
        """Announce that a device goes, and take it away before it can be read."""
        path = f"/sys/devices/virtual/neuron_device/neuron{device}".encode()
        self._library.umockdev_testbed_uevent(self._testbed, path, b"remove")
        self._library.umockdev_testbed_remove_device(self._testbed, path)

    def _add(self, subsystem: str, name: str, attributes: dict[str, str]) -> None:
        described = [
            f"P: /devices/virtual/{subsystem}/{name}",
            f"N: {name}",
            f"E: SUBSYSTEM={subsystem}",
            f"E: DEVNAME=/dev/{name}",
            *(f"A: {attribute}={text}" for attribute, text in attributes.items()),
        ]
        text = ("\n".join(described) + "\n").encode()
        if not self._library.umockdev_testbed_add_from_string(self._testbed, text, None):
            raise RuntimeError(f"umockdev refused {text!r}")


class Printer(logging.Handler):
    """Prints each event that was received."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(record.__dict__["action"], record.__dict__["device"])


async def heard(kernel: Kernel, changed: asyncio.Event) -> None:
    """Adding and removing a device are events, another subsystem's device is not even received."""
    listener = logging.getLogger("neuron_plugin.hardware.events")
    listener.setLevel(logging.DEBUG)
    listener.addHandler(Printer())
    kernel.add(0, core_count="2")
    await changed.wait()
    changed.clear()
    print("changed")
    kernel.remove(0)
    await changed.wait()
    changed.clear()
    print("changed")
    kernel.add_other()
    kernel.add(1, core_count="2")
    await changed.wait()
    changed.clear()
    print("changed")


async def hotplug(kernel: Kernel, changed: asyncio.Event) -> None:
    """The watcher sees a device come, go and come, long before its next rescan."""
    changes = watching(changed)
    print(ids(await anext(changes)))
    kernel.add(5, core_count="2")
    print(ids(await anext(changes)))
    kernel.add(6, core_count="2")
    print(ids(await anext(changes)))
    kernel.remove(5)
    print(ids(await anext(changes)))


async def late(kernel: Kernel, changed: asyncio.Event) -> None:
    """A device is announced before its core_count is there, and offered only after."""
    changes = watching(changed)
    await anext(changes)
    kernel.add(3)
    first = await anext(changes)
    print(ids(first), "incomplete", sorted(first.incomplete))
    kernel.set_attribute(3, "core_count", "2")
    print(ids(await anext(changes)))


def watching(changed: asyncio.Event) -> AsyncIterator[Inventory]:
    watcher = InventoryWatcher(partial(read_inventory, MachinePaths()), changed, WatchPeriods(rescan_seconds=3600))
    return aiter(watcher.changes())


def ids(inventory: Inventory) -> str:
    return f"devices {[int(device) for device in inventory.device_ids]}"


async def main(scenario: Callable[[Kernel, asyncio.Event], Awaitable[None]]) -> None:
    kernel = Kernel()
    changed = asyncio.Event()
    uevents = await open_uevents(changed)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await scenario(kernel, changed)
    finally:
        uevents.close()


if __name__ == "__main__":
    asyncio.run(main({"uevents": heard, "hotplug": hotplug, "late": late}[sys.argv[1]]))
