"""Is anything of the vendor's beside ours, or left over: device plugin, DRA driver, OCI hook?

The hook puts devices into every container whose environment has AWS_NEURON_VISIBLE_DEVICES, under their host numbers.
Device plugins have not needed it since 2022.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from neuron_plugin.inspection.facts import DRA_DRIVER, Facts
from neuron_plugin.inspection.findings import Finding, note, ok, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.unknown import Unknown

WRAPPER = "oci_neuron_hook"
"""Part of the names of all its files."""

_DEFAULT_RUNTIME = re.compile(r"""(?:default_runtime(?:_name)?|"default-runtime")\s*[=:]\s*["']neuron["']""")
_HOOK_PATH = re.compile(r"""["']([^"']*oci_neuron_hook[^"']*)["']""")


@dataclass(frozen=True, slots=True)
class _Use:
    """A configuration file that names the hook's runtime; ``everywhere``: for every container."""

    path: str
    everywhere: bool
    hooks: tuple[str, ...]


def check_oci_hook(facts: Facts) -> Iterator[Finding]:
    """The runtimes' configurations, then the hook's files."""
    yield from or_ok((*_unread(facts), *_used(facts), *_unused(facts)), "no OCI hook of the vendor's")


def _uses(facts: Facts) -> list[_Use]:
    files = {} if isinstance(facts.host.runtime_files, Unknown) else facts.host.runtime_files
    texts = {path: _without_comments(text) for path, text in files.items() if isinstance(text, str)}
    return [
        _Use(path, _DEFAULT_RUNTIME.search(text) is not None, tuple(_HOOK_PATH.findall(text)))
        for path, text in texts.items()
        if WRAPPER in text or _DEFAULT_RUNTIME.search(text)
    ]


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _unread(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.host.runtime_files, Unknown):
        yield unchecked(facts.host.runtime_files)
        return
    for path, text in facts.host.runtime_files.items():
        if isinstance(text, Unknown):
            yield unchecked(Unknown(f"{path}: {text.why}", text.action))


def _used(facts: Facts) -> Iterator[Finding]:
    for use in _uses(facts):
        names = {PurePosixPath(path).name for path in facts.host.hook_files}
        if lost := [hook for hook in use.hooks if PurePosixPath(hook).name not in names]:
            yield problem(
                f"{use.path} names {lost[0]}, which is not there",
                "containers that use this runtime do not start",
                f"take the runtime 'neuron' out of {use.path} and restart the container runtime",
            )
        else:
            yield warning(
                f"{use.path} makes {'every container' if use.everywhere else 'the runtime neuron'} use the OCI hook",
                "where AWS_NEURON_VISIBLE_DEVICES is set it adds devices under host numbers, beside those that the "
                "plugin gave under container numbers, and whoever else holds them",
                f"take the runtime 'neuron' out of {use.path} and restart the container runtime; until then leave "
                "--visible-devices-env off",
            )


def _unused(facts: Facts) -> Iterator[Finding]:
    if not facts.host.hook_files or _uses(facts):
        return
    (first, *_), unseen = facts.host.hook_files, isinstance(facts.host.runtime_files, Unknown)
    if unseen:
        yield note(
            f"the OCI hook is installed ({first}); whether a runtime uses it cannot be seen from here",
            "where one does and AWS_NEURON_VISIBLE_DEVICES is set, it adds devices under host numbers",
            "on the node: grep -rl oci_neuron_hook /etc/containerd /etc/docker /etc/crio /etc/containers",
        )
    else:
        yield note(
            f"the OCI hook is installed ({first}), and no runtime uses it",
            "harmless",
            "remove the package aws-neuronx-oci-hook when you like",
        )


def check_vendor_plugin(facts: Facts) -> Iterator[Finding]:
    """Its sockets beside kubelet.sock; one that nobody serves is harmless, the kubelet removes it when it starts."""
    if facts.kubelet.trouble:
        yield unchecked(facts.kubelet.trouble)
        return
    served = ", ".join(socket.name for socket in facts.vendor_sockets if socket.served)
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
    else:
        yield ok("no device plugin of the vendor's")


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
