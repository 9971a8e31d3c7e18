"""Which cluster a command is about: the one that kubectl would ask."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path


def add_kubeconfig_flag(parser: ArgumentParser) -> None:
    """Add ``--kubeconfig``, for ``kubeconfig_of``."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=Path,
        help="kubeconfig (default: KUBECONFIG, ~/.kube/config, or in a pod its service account)",
    )


def kubeconfig_of(given: Path | None) -> Path | None:
    """What was given, else where kubectl looks; None, the service account, if there is nothing."""
    if given:
        return given
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named or "~/.kube/config")
    try:
        path = path.expanduser()
    except RuntimeError:  # a user without a home, as in our image
        return None
    return path if path.exists() else None
