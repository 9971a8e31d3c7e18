"""The placement controller: the daemon that joins the cluster's state, the extender and the monitor API.

Its command and its Kubernetes objects are named ``extender``. Importing this is cheap, because the command line does
it at every start; ``daemon.ExtenderDaemon`` is imported where it runs.
"""

from neuron_plugin.controller.settings import ExtenderSettings, check
