"""Does a container runtime still use the vendor's OCI hook?

The hook puts devices into every container whose environment has AWS_NEURON_VISIBLE_DEVICES, under their host numbers.
Device plugins have not needed it since 2022.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, or_ok, problem, unchecked, warning

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
