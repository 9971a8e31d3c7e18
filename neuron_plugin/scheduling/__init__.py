"""The cluster's state, and the one choice of a node and a set that every door takes.

The state follows from pods and nodes. On it stand the verdicts, the choice among nodes, groups, reservations, moves and
evictions, and what kube-scheduler's own rules say.
"""
