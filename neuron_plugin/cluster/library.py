"""The ``kubernetes`` package, and no more of it than is used: its readers of settings and its bare HTTP client.

This is the one module that imports it, and only when it is asked to: in a thread, when the sockets that the kubelet
waits for are served already.

``_enter`` keeps out what the packages' own ``__init__`` modules would bring along (the synchronous client, requests,
and jsonschema where it is installed): 11 MB and 0.1 s of CPU in the image, 30 MB and 1.6 s in a development
environment. No supported way does: the modules we use are behind those two ``__init__``, and importlib's ``LazyLoader``
runs a package as soon as one of its modules is asked for. So the version is held below the next major one, and
``tests/cluster/test_library.py`` fails when it does not work, and when it is not needed any more.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_CROWDED_PACKAGES = ("kubernetes", "kubernetes.aio")


@dataclass(frozen=True, slots=True)
class Library:
    """The foreign modules, imported late."""

    aiohttp: ModuleType
    client: ModuleType
    configuration: ModuleType
    config: ModuleType


def import_library() -> Library:
    """Import what is used; it takes some tenths of a second, so in a thread where an event loop runs."""
    for package in _CROWDED_PACKAGES:
        _enter(package)
    import aiohttp
    from kubernetes.aio import config
    from kubernetes.aio.client import api_client, configuration

    return Library(aiohttp, api_client, configuration, config)


def _enter(package: str) -> None:
    """Let modules of a package be imported without its ``__init__``."""
    found = None if package in sys.modules else importlib.util.find_spec(package)
    if found is None:
        return  # imported whole by somebody else; or missing, of which the import tells better
    sys.modules[package] = module = importlib.util.module_from_spec(found)
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)
