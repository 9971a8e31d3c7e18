from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest_asyncio

from neuron_plugin.simulation import SimulatedCluster
from tests.scenarios.story import TYPES, Story, until

FLAGS = ("--numbering", "host", "--label-pods-on-sick-devices", "--lease-duration-seconds", "5")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[SimulatedCluster]:
    """One cluster for all stories of a module, in a short directory: the path of a socket has 107 bytes at most."""
    with TemporaryDirectory(prefix="np-") as directory:
        async with SimulatedCluster(Path(directory), TYPES, daemon_flags=FLAGS) as cluster:
            yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def story(cluster: SimulatedCluster) -> AsyncIterator[Story]:
    """The cluster with no pod in it, before and after."""
    story = Story(cluster)
    for name in TYPES:
        await until(partial(_is_open, story, name))
    yield story
    await story.end_all()


async def _is_open(story: Story, node: str) -> bool:
    return bool((await story.node(node))["status"]["open"])
