"""Is this project's plugin running, and could the kubelet call it?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cli.doctor_facts import Facts, SocketSeen, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, ok, problem, unchecked

_SEE_LOG = "see the log of the plugin's pod on this node, or delete that pod"


def check_plugin(facts: Facts) -> Iterator[Finding]:
    """A socket for each resource, one alone, that answers GetDevicePluginOptions."""
    if facts.kubelet.trouble:
        yield unchecked(facts.kubelet.trouble)
    elif facts.kubelet.missing:
        yield unchecked(Unknown("there is no kubelet", "mend what the check 'kubelet' reports first"))
    elif not facts.we_serve:
        yield _not_running(facts)
    for resource in Resource:
        yield from _resource(facts, resource)


def _not_running(facts: Facts) -> Finding:
    if any(socket.served for socket in facts.vendor_sockets):
        return note(
            "neuron-plugin does not run here, the vendor's device plugin does",
            "",
            "that is fine if you meant it so; else see the check 'vendor-plugin'",
        )
    if facts.machine.geometry is None:
        return note(
            "none of neuron-plugin's sockets is served",
            "it offers nothing before there is a device, so this does not tell whether it runs",
            "mend what the checks above report first",
        )
    return problem(
        "neuron-plugin does not run here: none of its sockets is served",
        "Kubernetes knows of no Neuron device on this node",
        "see the DaemonSet's pod on this node: is it scheduled here, running, with the kubelet's directory mounted?",
    )


def _resource(facts: Facts, resource: Resource) -> Iterator[Finding]:
    sockets = facts.sockets_of(resource)
    served = [socket for socket in sockets if socket.served]
    if len(served) > 1:
        yield problem(
            f"{len(served)} plugins serve {resource}: {_names(served)}",
            "the kubelet follows the newer one and drops both when the older one's stream ends",
            "leave one: look for a second DaemonSet or release, or a plugin that was started by hand",
        )
    for socket in served:
        if socket.fault:
            yield problem(
                f"the plugin for {resource} does not answer on {socket.path}: {socket.fault}",
                "the kubelet waits for it without a deadline: no pod of this node is admitted meanwhile",
                _SEE_LOG,
            )
    if len(served) == 1 and not served[0].fault:
        yield ok(f"{resource} answers on {served[0].name}")
    if stale := [socket for socket in sockets if not socket.served]:
        yield note(
            f"nobody serves {_names(stale)} any more",
            "left by a plugin that was killed; harmless",
            "nothing: the plugin removes it at its next start",
        )


def _names(sockets: list[SocketSeen]) -> str:
    return ", ".join(socket.name for socket in sockets)
