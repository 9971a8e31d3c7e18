"""What people are told of a node's troubles: the log at once, an event on the pod where there is one.

A reason is a fixed word, as Kubernetes events have it. The same reason for the same pod is told once, so a pod that is
tried again and again makes no storm.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.plugin.standins import is_known

logger = logging.getLogger(__name__)

REPORTER = "neuron-plugin.io/plugin"
"""Who all events are from."""

_REMEMBERED = 4096


class Report(Protocol):
    """Where troubles are reported."""

    def report(self, reason: str, text: str, pod: PodReference | None) -> None:
        """Tell that ``reason`` holds; ``pod`` is the pod it concerns, if known."""


Send = Callable[[PodReference, str, str], None]
"""Send an event of a reason and a text about a pod; must not block."""


class Reporter:
    """Logs, and hands what concerns a pod to ``send``, each (pod, reason, text) once."""

    def __init__(self, send: Send | None = None) -> None:
        """Without ``send`` the log is all there is."""
        self._send = send
        self._told: OrderedDict[tuple[PodUid | None, str, str], None] = OrderedDict()

    def report(self, reason: str, text: str, pod: PodReference | None) -> None:
        """Tell it, unless it was told before."""
        key = (pod.uid if pod else None, reason, text)
        if key in self._told:
            return
        self._told[key] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        known = pod if pod and is_known(pod) else None
        logger.warning(text, extra={"reason": reason, "pod": str(known) if known else "not known yet"})
        if known and self._send:
            self._send(known, reason, text)
