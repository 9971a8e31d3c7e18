from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from neuron_plugin.simulation import StandInApiServer

if TYPE_CHECKING:
    from pathlib import Path

UNUSED = ("kubernetes.client", "kubernetes.aio.dynamic", "requests", "jsonschema")


def printed_by(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=True)  # noqa: S603 - our own interpreter and text
    return done.stdout


def test_importing_the_room_does_not_import_the_library() -> None:
    """It takes some of the start, and the kubelet is to be served first."""
    script = (
        "import sys, pkgutil, importlib, neuron_plugin.cluster as room\n"
        "for module in pkgutil.iter_modules(room.__path__): importlib.import_module(f'{room.__name__}.{module.name}')\n"
        "print([name for name in ('kubernetes', 'aiohttp') if name in sys.modules])"
    )
    assert printed_by(script) == "[]\n"


def test_connecting_imports_nothing_of_the_library_that_is_not_used(tmp_path: Path) -> None:
    """The other half of it costs seconds at start, and tens of megabytes for good."""
    StandInApiServer().write_kubeconfig(tmp_path / "kubeconfig")
    script = (
        "import asyncio, pathlib, sys\n"
        "from neuron_plugin.cluster.transport import connect\n"
        "async def main():\n"
        "    async with await connect(pathlib.Path(sys.argv[1])): pass\n"
        "asyncio.run(main())\n"
        "models = [name for name in sys.modules if name.startswith('kubernetes.aio.client.models.')]\n"
        f"print([name for name in {UNUSED} if name in sys.modules], models, 'kubernetes.aio.config' in sys.modules)"
    )
    assert printed_by(script, str(tmp_path / "kubeconfig")) == "[] [] True\n"


def test_the_librarys_own_packages_still_bring_what_is_not_used_and_are_left_to_who_imported_them() -> None:
    """Where the first half fails, entering them by another door is not needed any more."""
    script = (
        "import sys, kubernetes.aio\n"
        "from neuron_plugin.cluster.library import import_library\n"
        f"print([name for name in {UNUSED[:2]} if name in sys.modules])\n"
        "print(import_library().config is kubernetes.aio.config, kubernetes.aio.dynamic.__name__)"
    )
    assert printed_by(script) == f"{list(UNUSED[:2])}\nTrue kubernetes.aio.dynamic\n"
