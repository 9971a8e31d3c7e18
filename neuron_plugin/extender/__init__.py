"""The scheduler's verbs and the cluster's state."""
