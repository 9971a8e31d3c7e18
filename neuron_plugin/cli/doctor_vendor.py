"""Is the vendor's device plugin beside ours, or has it left something?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_facts import Facts
from neuron_plugin.cli.doctor_findings import Finding, note, or_ok, problem, unchecked


def check_vendor_plugin(facts: Facts) -> Iterator[Finding]:
    """Its sockets beside kubelet.sock, and its file of old."""
    if facts.kubelet.trouble:
        yield unchecked(facts.kubelet.trouble)
        yield from _files(facts)
    else:
        yield from or_ok((*_sockets(facts), *_files(facts)), "no device plugin of the vendor's")


def _sockets(facts: Facts) -> Iterator[Finding]:
    served = ", ".join(socket.name for socket in facts.vendor_sockets if socket.served)
    dead = ", ".join(socket.name for socket in facts.vendor_sockets if not socket.served)
    if served and facts.we_serve:
        yield problem(
            f"the vendor's device plugin runs beside neuron-plugin ({served})",
            "both register the same resources: they hand out the same devices, and if one ends the kubelet drops both",
            "remove one: 'kubectl -n kube-system delete daemonset neuron-device-plugin-daemonset' (from Helm: "
            "neuron-device-plugin), or neuron-plugin",
        )
    elif served:
        yield note(
            f"the vendor's device plugin serves this node ({served})",
            "",
            "remove its DaemonSet before you install neuron-plugin here",
        )
    if dead:
        yield note(
            f"the vendor's device plugin has left {dead}",
            "nobody serves it any more; harmless, the kubelet removes it when it starts",
            "nothing",
        )


def _files(facts: Facts) -> Iterator[Finding]:
    if facts.host.vendor_files:
        yield note(
            f"there is {', '.join(facts.host.vendor_files)}",
            "made for device plugins before 2.16.18, which crash without it; nobody else reads it",
            "remove it when no such plugin runs any more",
        )
