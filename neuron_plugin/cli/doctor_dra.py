"""Is the vendor's DRA driver on this node, too?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_facts import DRA_DRIVER, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, ok, problem, unchecked


def check_dra_driver(facts: Facts) -> Iterator[Finding]:
    """Its sockets in the kubelet's plugin directories."""
    if facts.kubelet.trouble:
        yield unchecked(facts.kubelet.trouble)
        return
    served = [socket for socket in facts.dra_sockets if socket.served]
    if served and facts.we_serve:
        yield problem(
            f"the DRA driver {DRA_DRIVER} runs beside neuron-plugin ({served[0].path})",
            "each hands out all devices without knowing of the other: one device ends up with two pods",
            "run one of the two on a node: keep one away by a nodeSelector, or uninstall it",
        )
    elif served:
        yield note(f"the DRA driver {DRA_DRIVER} serves this node", "", "remove it before neuron-plugin is installed")
    elif facts.dra_sockets:
        yield note(
            f"the DRA driver {DRA_DRIVER} has left {facts.dra_sockets[0].path}",
            "nobody serves it any more",
            f"if it was uninstalled: look for ResourceSlices of {DRA_DRIVER} that still offer these devices",
        )
    elif not facts.kubelet.drivers_seen:
        yield unchecked(
            Unknown(
                f"{facts.kubelet.directory.parent}/plugins_registry, where DRA drivers register, cannot be seen from "
                "here: it belongs to root, and a pod sees only what it mounts",
                "run this as root on the node; or mount that directory, read-only, in the plugin's pod "
                "(devicePlugin.extraVolumes and extraVolumeMounts in the chart)",
            )
        )
    else:
        yield ok(f"no DRA driver {DRA_DRIVER}")
