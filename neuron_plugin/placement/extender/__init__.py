"""The door for kube-scheduler's HTTP verbs, and the bind: the scheduler extender."""
