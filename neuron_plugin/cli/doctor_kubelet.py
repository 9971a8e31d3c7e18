"""Is there a kubelet, and does it answer?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, ok, problem, unchecked, warning


def check_kubelet(facts: Facts) -> Iterator[Finding]:
    """Its directory, its registration socket, its account of who holds what."""
    kubelet = facts.kubelet
    if kubelet.trouble:
        yield unchecked(kubelet.trouble)
        return
    if kubelet.missing:
        yield problem(
            f"there is no directory {kubelet.directory}",
            "there is no kubelet here, or its directory is not mounted where this runs: nothing can be registered",
            "on a node: start the kubelet; in a container: mount that host directory; elsewhere: give --kubelet-dir",
        )
        return
    yield _registration_socket(facts)
    if isinstance(kubelet.allocatable, Unknown) and kubelet.own_socket and kubelet.own_socket.served:
        yield warning(
            f"the kubelet does not tell who holds what: {kubelet.allocatable.why}",
            "the plugin learns from there what pods hold; without it annotations cannot be confirmed or corrected",
            kubelet.allocatable.action or "mount /var/lib/kubelet/pod-resources, or give --pod-resources-socket",
        )


def _registration_socket(facts: Facts) -> Finding:
    socket, directory = facts.kubelet.own_socket, facts.kubelet.directory
    if socket is None:
        return problem(
            f"there is no kubelet.sock in {directory}",
            "the kubelet is not running, or another host directory is mounted here: nothing can be registered",
            "see 'systemctl status kubelet'; compare the plugin's hostPath mount with this directory",
        )
    if not socket.served:
        return problem(
            f"nobody answers on {socket.path}",
            "the kubelet has ended and left its socket, or is starting: nothing can be registered",
            "see 'systemctl status kubelet' and its log; run this again in some seconds",
        )
    return ok(f"the kubelet answers on {socket.path}")
