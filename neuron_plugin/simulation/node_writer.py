"""Brings the files of a simulated machine in line with its description, in the order in which a driver works.

The description is written last: whoever finds it finds what it says.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from neuron_plugin.hardware import SIMULATED_MARKER, MachinePaths
from neuron_plugin.simulation.node_description import DESCRIPTION_FILE, NodeDescription
from neuron_plugin.simulation.node_files import (
    remove,
    update_files,
    write_char_node,
    write_directory,
    write_file,
    write_link,
)
from neuron_plugin.simulation.node_kmsg import KMSG
from neuron_plugin.simulation.node_tree import File, class_files, device_files


class TreeWriter:
    """The files of the machine in ``root``; its user holds the machine (``exclusively``)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = MachinePaths.under(root)
        self.class_dir = self.paths.sysfs / "class/neuron_device"
        self.device_dir = self.paths.sysfs / "devices/virtual/neuron_device"
        self.module_dir = self.paths.sysfs / "module/neuron"

    def build(self, description: NodeDescription) -> None:
        """Write a machine that is not there yet."""
        dmi = self.paths.sysfs / "devices/virtual/dmi/id"
        write_file(self.root, dmi / "product_name", File(description.instance_type + "\n", 0o444))
        write_link(self.root, self.paths.sysfs / "class/dmi/id", "../../devices/virtual/dmi/id")
        write_file(self.root, self.paths.dev / SIMULATED_MARKER, File("plain files stand for device nodes here\n"))
        write_file(self.root, self.paths.dev / KMSG, File(""))
        self.change(msgspec.structs.replace(description, driver_loaded=False, logical_core_size=None), description)

    def change(self, before: NodeDescription, after: NodeDescription) -> None:
        """Turn one machine into another: the module before its devices, a device before its node, and back."""
        for device in sorted(set(before.loaded) - set(after.loaded)):
            self._remove_device(device)
        self._module(before, after)
        for device in sorted(set(before.loaded) & set(after.loaded)):
            old, new = device_files(before, device), device_files(after, device)
            update_files(self.root, self.device_dir / f"neuron{device}", old, new)
        for device in sorted(set(after.loaded) - set(before.loaded)):
            self._add_device(after, device)
        for device in after.loaded:
            self._node(after, device)
        if before.logical_core_size != after.logical_core_size:
            self._logical_core_size(after.logical_core_size)
        self._describe(after)

    def _describe(self, description: NodeDescription) -> None:
        described = msgspec.json.format(msgspec.json.encode(description), indent=2).decode()
        write_file(self.root, self.root / DESCRIPTION_FILE, File(described + "\n"))

    def _module(self, before: NodeDescription, after: NodeDescription) -> None:
        if before.driver_loaded and not after.driver_loaded:
            remove(self.root, self.class_dir)
            remove(self.root, self.device_dir)
            remove(self.root, self.module_dir)
        elif after.driver_loaded and not before.driver_loaded:
            version = File(after.driver_version + "\n", 0o444)
            write_directory(self.root, self.module_dir, {"version": version}, {})
            write_directory(self.root, self.class_dir, class_files(after), {})

    def _add_device(self, description: NodeDescription, device: int) -> None:
        name = f"neuron{device}"
        files = device_files(description, device)
        subsystem = {"subsystem": "../../../../class/neuron_device"}
        write_directory(self.root, self.device_dir / name, files, subsystem)
        write_link(self.root, self.class_dir / name, f"../../devices/virtual/neuron_device/{name}")

    def _remove_device(self, device: int) -> None:
        name = f"neuron{device}"
        remove(self.root, self.paths.dev / name)
        remove(self.root, self.class_dir / name)
        remove(self.root, self.device_dir / name)

    def _node(self, description: NodeDescription, device: int) -> None:
        path = self.paths.dev / f"neuron{device}"
        wanted, there = description.device(device).node, path.exists()
        if there and not wanted:
            remove(self.root, path)
        elif wanted and not there and description.char_nodes:
            write_char_node(self.root, path, description.major, device)
        elif wanted and not there:
            write_file(self.root, path, File("", 0o666))

    def _logical_core_size(self, size: int | None) -> None:
        path = self.paths.logical_nc_config
        if size is None:
            remove(self.root, path)
        else:
            write_file(self.root, path, File(f"NEURON_LOGICAL_NC_CONFIG={size}\n"))
