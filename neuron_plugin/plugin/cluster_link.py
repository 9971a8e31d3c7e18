"""The node daemon's line to the API server: this node's pods in; assignments, inventory and events out.

Nothing that serves a container waits for it. While the API server is away the node goes on with what it knows, and
what it wants to say waits in the outbox.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from neuron_plugin.allocation.inventory import INVENTORY_KEY, write_inventory
from neuron_plugin.allocation.ledger import Holding, Pod
from neuron_plugin.cluster.api import ClusterError
from neuron_plugin.cluster.transport import connect
from neuron_plugin.plugin.annotate import confirmed_annotations
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.outbox import Outbox
from neuron_plugin.plugin.pod_watch import PodReflector, follow_pods
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.report import Reporter
from neuron_plugin.plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
