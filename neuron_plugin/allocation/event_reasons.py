"""The reasons of the events that the plugin and the placement controller write.

People, scripts and alerts filter by them, so each is defined once and not renamed. docs/troubleshooting.md explains
each.
"""

from __future__ import annotations

import enum


class EventReason(enum.StrEnum):
    """The reason of an event."""

    # The plugin, on a pod.
    DEVICE_UNHEALTHY = "NeuronDeviceUnhealthy"
    """Also on the node."""
    DEVICE_HEALTHY = "NeuronDeviceHealthy"
    """Also on the node."""
    UNLINKED = "UnlinkedDevices"
    CORRECTED = "AssignmentCorrected"
    PRIVILEGED = "PrivilegedContainer"
    ALLOCATION_REFUSED = "AllocationRefused"
    INVALID_REQUEST = "InvalidNeuronRequest"
    INVALID_ASSIGNMENT = "InvalidNeuronAssignment"
    INVALID_CONSTRAINT = "InvalidNeuronConstraint"
    CONSTRAINT_NOT_KEPT = "ConstraintNotKept"
    CORES_IDLE = "NeuronCoresIdle"

    # The plugin, on its node.
    DEVICE_WARNING = "NeuronDeviceWarning"
    DEVICE_DISABLED = "NeuronDeviceDisabled"
    DEVICE_ENABLED = "NeuronDeviceEnabled"
    INVALID_DISABLED = "InvalidDisabledDevices"

    # The placement controller, on a pod.
    WAITING = "NeuronWaiting"
    RELEASED_PLAINLY = "NeuronReleasedPlainly"
    PLACEMENT_FORBIDDEN = "NeuronPlacementForbidden"
    PLACEMENT_FAILED = "NeuronPlacementFailed"
    NO_PREEMPTION = "NeuronNoPreemption"
    PREEMPTED = "NeuronPreempted"
    EVICTED_FOR_MOVE = "NeuronEvictedForMove"
    ROOM_BY_MOVE = "NeuronRoomByMove"
    ROOM_RESERVED = "NeuronRoomReserved"
    ROOM_GIVEN_BACK = "NeuronRoomGivenBack"
    GROUP_NOT_RESERVED = "NeuronGroupNotReserved"
    GROUP_MUST_RESTART = "NeuronGroupMustRestart"
    ASSIGNMENT_UNREADABLE = "NeuronAssignmentUnreadable"
    ASSIGNMENT_MISSING = "NeuronAssignmentMissing"
    ASSIGNMENT_OVERLAPS = "NeuronAssignmentOverlaps"

    # The placement controller, on a node, a group's pods or a ConfigMap.
    ADMISSION_REJECTED = "NeuronAdmissionRejected"
    PLUGIN_SILENT = "NeuronPluginSilent"
    PREFLIGHT_FAILED = "NeuronPreflightFailed"
    PREFLIGHT_UNABLE = "NeuronPreflightUnable"
    DEVICE_HOURS_SPOILT = "NeuronDeviceHoursSpoilt"
