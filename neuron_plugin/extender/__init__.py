"""The scheduler extender: which node and which linked set a pod gets, and the one write that says so.

Importing this is cheap, because the command line does it at every start. What loads aiohttp is imported from its module
where it runs: ``daemon.ExtenderDaemon``, ``explain.explain``, ``informers.survey``.
"""

from neuron_plugin.extender.scheduler_config import (
    DEFAULT_SCHEDULER,
    SECOND_SCHEDULER,
    ExtenderEndpoint,
    scheduler_configuration,
)
from neuron_plugin.extender.settings import ExtenderSettings, check
