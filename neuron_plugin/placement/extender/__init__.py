"""kube-scheduler's HTTP verbs and the bind: the scheduler extender.

Importing this is cheap, because the command line does it at every start. What loads aiohttp is imported from its
module where it runs.
"""

from neuron_plugin.placement.extender.scheduler_config import (
    SECOND_SCHEDULER,
    ExtenderEndpoint,
    FilterMode,
    scheduler_configuration,
)
