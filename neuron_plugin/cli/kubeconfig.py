"""Which cluster a command is about: the one that kubectl would ask."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path

from neuron_plugin.cli.command import UsageError

_USUAL = "~/.kube/config"


def add_kubeconfig_flag(parser: ArgumentParser) -> None:
    """Add ``--kubeconfig``, for ``kubeconfig_of``."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=Path,
        help=f"kubeconfig (default: KUBECONFIG, {_USUAL}, or in a pod its service account)",
    )


def kubeconfig_of(given: Path | None) -> Path | None:
    """What was given, else where kubectl looks; None in a pod that has nothing there: its service account.

    Raises:
        UsageError: what is named is not there, or nothing is.
    """
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    candidates = [given] if given else named or [Path(os.path.expanduser(_USUAL))]  # noqa: PTH111 - Path's raises without a home
    for candidate in candidates:
        if candidate.exists():
            return candidate
    if given or named:
        what = "--kubeconfig" if given else "KUBECONFIG"
        raise UsageError(
            f"{what} is {os.pathsep.join(map(str, candidates))}, which is not there: expected a kubeconfig"
        )
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    raise UsageError(f"no API server is known: give --kubeconfig or set KUBECONFIG; there is no {_USUAL}")
