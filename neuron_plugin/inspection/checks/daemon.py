"""Does our daemon run here, could the kubelet call it, and does it hear all that it could?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection.facts import Facts, SocketSeen
from neuron_plugin.inspection.findings import Finding, note, ok, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.unknown import Unknown

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
            "mend what the checks 'driver' and 'devices' report first",
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


def _names(sockets: list[SocketSeen]) -> str:
    return ", ".join(socket.name for socket in sockets)


def check_configuration(facts: Facts) -> Iterator[Finding]:
    """The daemon's file and environment, and its memory of old errors."""
    daemon = facts.daemon
    if isinstance(daemon.trouble, Unknown):
        yield unchecked(daemon.trouble)
    elif daemon.trouble:
        yield problem(
            daemon.trouble,
            "the daemon does not start with it; the other checks assume its defaults",
            "mend it: 'neuron-plugin run --print-config' with the same file and environment says when it is right",
        )
    elif daemon.file is None:
        yield unchecked(
            Unknown(
                "no configuration of the daemon's is known: its defaults are assumed",
                "give --config, or run this in the plugin's pod",
            )
        )
    else:
        yield ok(f"{daemon.file} can be used")
        if isinstance(memory := facts.machine.memory, Unknown):
            yield note(
                f"which errors are old is not known: {memory.why}",
                "errors that the daemon has accepted, or that are older than it, are told like new ones",
                memory.action,
            )


def check_sources(facts: Facts) -> Iterator[Finding]:
    """Uevents, firmware's notices, sysfs, the kernel log and the memory of old errors, as the daemon says itself."""
    silent = facts.daemon.silent
    if isinstance(silent, Unknown):
        yield unchecked(silent)
        return
    findings = (
        warning(
            line,
            "the daemon goes on without it: what only this source tells is not noticed, or noticed later",
            "do what it says, or leave it where the source is not wanted; the others go on",
        )
        for line in silent
    )
    yield from or_ok(findings, "the daemon hears every source")
