"""How many physical cores one logical core has on this machine (LNC).

sysfs always counts physical cores; Kubernetes, the runtime and every id of ours count logical ones, so this number
decides what an id means. It is said, in this order, by the environment (``NEURON_LOGICAL_NC_CONFIG``, then the older
``NEURON_RT_VIRTUAL_CORE_SIZE``), by the host's file, and else by the product. An illegal value is passed over and
reported: ids that the runtime would refuse help nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ENVIRONMENT_KEYS = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
"""As the runtime reads them, newer name first."""

_COMMENT = re.compile(r"#.*")
_ASSIGNMENT = re.compile(r"""^\s*(?:export\s+)?NEURON_LOGICAL_NC_CONFIG\s*=\s*["']?(.*?)["']?\s*$""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LogicalCoreSize:
    """The size in force, who said so (for people), and what was passed over on the way."""

    size: int
    source: str
    problems: tuple[str, ...] = ()


def choose_logical_core_size(
    *, default: int, largest: int, cores_per_device: int, environ: Mapping[str, str], host_file: str
) -> LogicalCoreSize:
    """The logical core size in force.

    ``host_file`` is the text of ``/opt/aws/neuron/logical_nc_config`` (``NEURON_LOGICAL_NC_CONFIG=1``), empty where
    there is none. Legal is a power of two that divides ``cores_per_device`` and is at most ``largest``.
    """
    problems: list[str] = []
    for source, text in _said(environ, host_file):
        if _is_legal(text, largest, cores_per_device):
            return LogicalCoreSize(int(text), source, tuple(problems))
        problems.append(
            f"{source} says {text[:40]!r}, expected a power of two, at most {largest}, that divides "
            f"{cores_per_device} cores: ignored, correct or remove it"
        )
    return LogicalCoreSize(default, "hardware default", tuple(problems))


def _said(environ: Mapping[str, str], host_file: str) -> Iterator[tuple[str, str]]:
    yield from ((key, environ[key].strip()) for key in ENVIRONMENT_KEYS if environ.get(key))
    setting = _COMMENT.sub("", host_file).strip()
    assignments = _ASSIGNMENT.findall(setting)
    if setting:
        yield "logical_nc_config", assignments[-1] if assignments else setting  # the last, as a shell would have it


def _is_legal(text: str, largest: int, cores_per_device: int) -> bool:
    if not re.match(r"[0-9]{1,3}\Z", text):
        return False
    size = int(text)
    return size > 0 and size & (size - 1) == 0 and size <= largest and cores_per_device % size == 0
