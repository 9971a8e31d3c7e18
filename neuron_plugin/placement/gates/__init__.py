"""Pods are placed before any scheduler looks at them: their queue, and the one PATCH that places and releases.

A pod is created with a scheduling gate. The leader chooses node and set from the same state and with the same choice
as the extender, writes both on the pod and takes the gate off. The scheduler of the cluster then finds one node left.
"""
