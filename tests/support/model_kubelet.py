"""A kubelet without sockets and disk: what it remembers of devices and claims, and its two files.

The memory is that of the simulated kubelet, and so is the order of an allocation and of a preparation. When a file is
written, what a call takes and what goes wrong is the test's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.claims import DRA_DRIVER
from neuron_plugin.kubelet import Checkpoint, CheckpointError
from neuron_plugin.kubelet.checkpoint import parse_checkpoint
from neuron_plugin.kubelet.dra_state import DraState, parse_dra_state
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.simulation.kubelet_dra import ClaimMemory, KubeletStateError

RESOURCES = tuple(resource.value for resource in Resource)
Version = tuple[int, int, int] | None
Read = TypeVar("Read")


class KubeletFile(Generic[Read]):
    """One file: its bytes, a version that changes with each write, and why it cannot be read (``fault``)."""

    def __init__(self, parse: Callable[[bytes | None, Version], Read]) -> None:
        self.data: bytes | None = None
        self.fault = ""
        self.reads = 0
        self.written: Callable[[], None] = lambda: None
        self._parse = parse
        self._edition = 0

    def put(self, data: bytes | None) -> None:
        self.data, self._edition = data, self._edition + 1
        self.written()

    def version(self) -> Version:
        return None if self.data is None else (self._edition, len(self.data), 1)

    def read(self) -> Read:
        self.reads += 1
        if self.fault and self.data is not None:
            raise CheckpointError(self.fault)
        return self._parse(self.data, self.version())


def checkpoint_file() -> KubeletFile[Checkpoint]:
    return KubeletFile(
        lambda data, version: Checkpoint(() if data is None else parse_checkpoint(data, RESOURCES), version)
    )


def claims_file() -> KubeletFile[DraState]:
    return KubeletFile(
        lambda data, version: DraState(() if data is None else parse_dra_state(data, {DRA_DRIVER}), version)
    )


class ModelKubelet:
    """One node's kubelet; each `begin` is a new process of it, which knows what its files say."""

    def __init__(self, chance: Random, *, numa_affinity: frozenset[int] | None = None) -> None:
        self.file = checkpoint_file()
        self.claims_file = claims_file()
        self._chance = chance
        self._numa_affinity = numa_affinity
        self.begin()

    def begin(self) -> bool:
        """Read the files; False if the checkpoint was not there, or could not be read.

        With a file of claims that it cannot read the real one does not start until somebody has removed it.
        """
        self.manager = DeviceManager(self._chance, numa_affinity=self._numa_affinity)
        self.memory = ClaimMemory(write=self._write_claims)
        try:
            self.memory.load(self.claims_file.data)
        except KubeletStateError:
            self.claims_file.put(None)
        return self.manager.load(self.file.data)

    def _write_claims(self) -> None:
        self.claims_file.put(self.memory.state_bytes())
