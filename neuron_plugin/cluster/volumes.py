"""Claims and volumes as far as they say where a pod can run."""

from __future__ import annotations

from neuron_plugin.allocation.node_rules import Volume
from neuron_plugin.cluster.objects import ApiObject, ApiResource, Wire
from neuron_plugin.cluster.pods import WireNodeSelector


class _ClaimSpec(Wire, frozen=True):
    volume_name: str = ""


class Claim(ApiObject, frozen=True):
    """A PersistentVolumeClaim: the volume that it is bound to, if any."""

    spec: _ClaimSpec = _ClaimSpec()

    @property
    def volume_name(self) -> str:
        """Empty while the claim is not bound."""
        return self.spec.volume_name


class _VolumeNodeAffinity(Wire, frozen=True):
    required: WireNodeSelector | None = None


class _VolumeSpec(Wire, frozen=True):
    node_affinity: _VolumeNodeAffinity | None = None


class PersistentVolume(ApiObject, frozen=True):
    """The part of a PersistentVolume that says which nodes can use it."""

    spec: _VolumeSpec = _VolumeSpec()

    @property
    def volume(self) -> Volume:
        """Its name, and the terms of which a node has to match one."""
        required = self.spec.node_affinity.required if self.spec.node_affinity else None
        return Volume(self.name, required.terms if required else None)


CLAIMS = ApiResource("/api/v1", "persistentvolumeclaims", Claim)
PERSISTENT_VOLUMES = ApiResource("/api/v1", "persistentvolumes", PersistentVolume)
