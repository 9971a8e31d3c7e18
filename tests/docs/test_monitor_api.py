"""docs/monitor-api.md shows the stored answers, has every key, and its client works."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.monitor.api import MOST_WATCHES, Monitor
from neuron_plugin.monitor.views import (
    ContainerDemand,
    ContainerIds,
    Holder,
    NodeViewSpec,
    NodeViewStatus,
    PodViewSpec,
    PodViewStatus,
)
from neuron_plugin.placement.leadership import Readiness
from tests.support.served import served
from tests.support.world import World

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/monitor-api.md").read_text(encoding="utf-8")
NODE, POD = (TEXT.partition(f"\n## {kind}\n")[2].partition("\n## ")[0] for kind in ("NeuronNode", "NeuronPod"))


def quoted(section: str) -> object:
    return json.loads(section.partition("```json\n")[2].partition("```")[0])


@pytest.mark.parametrize(("section", "stored"), [(NODE, "neuronnodes"), (POD, "neuronpods")])
def test_the_page_shows_a_stored_answer(section: str, stored: str) -> None:
    assert quoted(section) == json.loads((ROOT / f"tests/monitor/golden/{stored}.json").read_text())[0]


def described(section: str, part: str) -> list[str]:
    """The keys in the first column of a table."""
    table = section.partition(f"| key of `{part}` | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    return [key for row in table.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("section", "part", "kind"),
    [
        (NODE, "spec", NodeViewSpec),
        (NODE, "status", NodeViewStatus),
        (POD, "spec", PodViewSpec),
        (POD, "status", PodViewStatus),
    ],
)
def test_p82_every_key_has_its_meaning_and_no_other_is_named(
    section: str, part: str, kind: type[msgspec.Struct]
) -> None:
    assert sorted(described(section, part)) == sorted(kind.__struct_encode_fields__)


@pytest.mark.parametrize(("section", "kind"), [(NODE, Holder), (POD, ContainerDemand), (POD, ContainerIds)])
def test_p82_the_keys_within_a_list_are_named(section: str, kind: type[msgspec.Struct]) -> None:
    assert [key for key in kind.__struct_encode_fields__ if f"`{key}`" not in section] == []


def test_the_limit_is_the_one_of_the_code() -> None:
    assert f"most {MOST_WATCHES} watches" in TEXT


async def test_the_client_on_the_page_shows_what_is_there_and_what_changes(tmp_path: Path) -> None:
    world = World(version=1000)
    world.node("trn-1", "inf2.xlarge")
    monitor, script = Monitor(world.state, Readiness({})), tmp_path / "watch_nodes.py"
    script.write_text(TEXT.partition("```python\n")[2].partition("```")[0])
    async with served(monitor.routes()) as port:
        client = await asyncio.create_subprocess_exec(
            sys.executable, script, f"http://127.0.0.1:{port}", stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout
        try:
            assert await client.stdout.readline() == b"LISTED trn-1 free: 0 open\n"
            world.node("trn-1", "inf2.xlarge", unhealthy={0: "ECC"})
            assert await client.stdout.readline() == b"MODIFIED trn-1 free: none open\n"
        finally:
            client.kill()
            monitor.stop()
            await client.communicate()
