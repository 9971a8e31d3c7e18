"""What the scheduler extender costs, next to what the same bytes cost without deciding anything.

Each figure has its floor from the same run: filter stands beside decoding and re-encoding the same body, binds beside
plain binding POSTs on the same client. Run one part by name: ``verbs``, ``http``, ``memory``, ``binds``, ``start``,
``page``, ``moves``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from extender_parts.binds import binds
from extender_parts.http import http
from extender_parts.memory import memory
from extender_parts.moves import moves
from extender_parts.page import page
from extender_parts.start import start
from extender_parts.verbs import verbs
from extender_parts.waiting import waiting


def main() -> None:
    """Run the parts asked for."""
    logging.getLogger().setLevel(logging.ERROR)
    parts: dict[str, Callable[[], None]] = {
        "verbs": verbs,
        "http": lambda: asyncio.run(http()),
        "memory": lambda: asyncio.run(memory()),
        "moves": moves,
        "binds": lambda: asyncio.run(binds()),
        "start": lambda: asyncio.run(start()),
        "page": lambda: asyncio.run(page()),
        "waiting": lambda: asyncio.run(waiting()),
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=list(parts), help="only this part")
    chosen = parser.parse_args().part
    for name in [chosen] if chosen else parts:
        parts[name]()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    main()
