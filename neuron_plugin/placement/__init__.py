"""The placement controller: which node and which linked set every pod gets, for the whole cluster.

One choice and two doors: ``gates`` (before any scheduler sees a pod) and ``extender`` (kube-scheduler's HTTP calls).
Its command and its Kubernetes objects are named ``extender``. Importing this is cheap, because the command line does it
at every start; ``daemon.ExtenderDaemon`` is imported where it runs.
"""

from neuron_plugin.placement.settings import ExtenderSettings, check
