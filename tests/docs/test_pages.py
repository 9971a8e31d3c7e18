"""The hand-written pages: links lead somewhere, commands work, quoted texts are those of the code.

A ``console`` block holds commands that need no cluster: each is run here, in order, one directory for a page that has
the files which the page says to save. What is shown below a command must be in its output ("..." for what is left out).
``sh`` blocks are tried by ``test_commands``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]  # ships no types; one function is used here
import looptime
import pytest
import yaml

from neuron_plugin.allocation import PodUid, Rejection
from neuron_plugin.allocation import rejection as rejections
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.rejection import CORDONED, NODE_REFUSALS
from neuron_plugin.cli.main import main
from neuron_plugin.inspection.checks import CHECKS
from neuron_plugin.kubelet import AdvertisedDevice, AllocationRefusedError, Checkpoint, CheckpointEntry
from neuron_plugin.kubelet.advertisement import Edition
from neuron_plugin.kubelet.device_plugin import checked_ids
from neuron_plugin.placement.events import EVENT_REASONS
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.topology import Unit
from tests.charts.rendering import CHART, KUBERNETES, coalesced, default_values
from tests.plugin.world import CORE, NEURON, TRN1, TRN2, app, inventory, pod, uid_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", CHART / "README.md", *sorted(DOCS.glob("decisions/*.md"))]
"""All that people read here but the changelog."""

HAND_WRITTEN = [page for page in PAGES if "Made by docs/generate.py" not in page.read_text()]

PLAYED = [
    *sorted(DOCS.glob("platforms-*.md")),
    *(DOCS / f"{name}.md" for name in ("utilization", "first-pod", "eks", "repair")),
]
"""The pages whose console blocks are typed beside a playground, by ``test_platforms``."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(page: Path, language: str) -> Iterator[str]:
    return (text for found, text in FENCE.findall(page.read_text()) if found == language)


def identified(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Step:
    """A command as a page shows it, and what the page shows of its output."""

    line: str
    shown: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.line, comments=True)[1:]

    @property
    def status(self) -> int:
        found = re.search(r"# exit status (\d+)", self.line)
        return int(found[1]) if found else 0


def steps(page: Path) -> list[Step]:
    found: list[Step] = []
    for block in blocks(page, "console"):
        first, *others = block.split("\n$ ")
        assert first.startswith("$ "), f"{page.name}: a console block begins with a command, not {first[:40]!r}"
        for text in (first.removeprefix("$ "), *others):
            line, *shown = text.rstrip().split("\n")
            found.append(Step(line, tuple(each for each in shown if each != "...")))
    return found


@pytest.mark.parametrize("page", PROSE, ids=identified)
def test_p82_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in map(slug, HEADING.findall(FENCE.sub("", file.read_text()))), f"{page.name}: {target}"


def test_the_index_leads_to_every_page() -> None:
    index = set(LINK.findall((DOCS / "README.md").read_text()))
    missing = {page.name for page in DOCS.glob("*.md")} - index - {"README.md"}
    assert not missing


@pytest.mark.parametrize("page", PROSE, ids=identified)
def test_every_table_has_a_head(page: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", FENCE.sub("", page.read_text()), re.MULTILINE)
    assert [table[:80] for table in tables if not re.match(r".*\n\|[ :|-]+\|\n", table)] == []


def saved_files(page: Path) -> dict[str, str]:
    """The files that a page says to save, by name."""
    files = re.compile(r"[Ss]ave(?:d)?\s+as\s+`([\w.-]+)`[^`]*?:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return dict(files.findall(page.read_text()))


@pytest.mark.parametrize("page", [page for page in HAND_WRITTEN if steps(page) and page not in PLAYED], ids=identified)
def test_p82_every_command_that_needs_no_cluster_does_what_its_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in saved_files(page).items():
        Path(name).write_text(text)
    for step in steps(page):
        assert step.line.startswith("neuron-plugin "), f"{page.name}: {step.line} cannot be run by this test"
        assert not set("|<>;&$`") & set(step.line), f"{page.name}: {step.line} needs a shell"
        status = main(step.arguments)
        printed = capsys.readouterr()
        assert status == step.status, f"{page.name}: {step.line}: {printed.err}"
        lines = {line.strip() for line in printed.out.splitlines()}
        assert [each for each in step.shown if each.strip() not in lines] == [], f"{page.name}: {step.line}"


OF_OTHERS = {
    *("NodePool", "NodeOverlay", "NodeReadinessRule", "NodeFeatureRule", "DeschedulerPolicy", "ClusterConfig"),
    *("JobSet", "LeaderWorkerSet", "RayCluster", "Topology", "ResourceFlavor", "ClusterQueue"),
    *("managedNodeGroups", "groups", "instance-types", "neuroncore=1"),
}
"""Kinds, and first keys of files, whose fields neither Kubernetes nor the chart judges."""


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=identified)
def test_yaml_on_a_page_is_what_kubernetes_or_the_chart_takes(page: Path) -> None:
    for document in (each for text in blocks(page, "yaml") for each in yaml.safe_load_all(text)):
        if {document.get("kind"), next(iter(document))} & OF_OTHERS:
            continue
        if document.keys() <= default_values().keys():
            schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
            jsonschema.Draft7Validator(schema).validate(coalesced(document))
        else:
            kubernetes_validate.validate(whole(document), KUBERNETES.rpartition(".")[0], strict=True)


def whole(document: dict[str, Any]) -> dict[str, Any]:
    """An object; a part of a pod, or of its only container, becomes a pod."""
    if "kind" in document:
        return document
    container = {"name": "main", "image": "main", "resources": document.get("resources", {})}
    spec = {"containers": [container], **document.get("spec", {})}
    rest = {key: value for key, value in document.items() if key not in {"resources", "spec"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec, **rest}


def section(heading: str) -> str:
    """A part of troubleshooting.md, with the parts below it."""
    text = (DOCS / "troubleshooting.md").read_text()
    level = next(found[1] for found in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE) if found[2] == heading)
    after = text.partition(f"{level} {heading}\n")[2]
    return re.split(rf"^#{{1,{len(level)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def quoted(heading: str) -> set[str]:
    """The texts in the first column of a section's first table."""
    table = f"\n{section(heading)}".partition("\n\n|")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def form(text: str) -> str:
    """A refusal's text whatever the unit, the type and the numbers are."""
    text = re.sub(r"[a-z0-9]+\.[0-9]*x?large\b", "TYPE", text)
    text = re.sub(r"\b(device|core)(s?)\b", r"UNIT\2", text)
    return re.sub(r"\d+( or \d+)*", "N", text)


def forms(refusal: object) -> list[set[str]]:
    """What a name of the module says: sets of forms, from each of which the page has at least one."""
    if isinstance(refusal, Rejection):
        own = (*NODE_REFUSALS, CORDONED, rejections.INVALID_REQUEST, rejections.INVALID_CONSTRAINT)
        return [] if refusal in own else [{form(refusal.text)}]
    if not inspect.isfunction(refusal) or inspect.signature(refusal).return_annotation != "Rejection":
        return []
    names = inspect.signature(refusal).parameters
    known = {"name": "neuron-plugin.io/memory", "count": 2, "amount": 5, "devices": 2, "has": 2, "per_device": 2}
    made = defaultdict[bool, set[str]](set)
    for geometry, unit, on_one in product((TRN1, TRN2), Unit, (True, False)):
        arguments = known | {"geometry": geometry, "unit": unit, "on_one_device": on_one}
        text = refusal(**{name: arguments[name] for name in names}).text
        made["on_one_device" in names and on_one].add(form(text))
    return list(made.values())


def test_troubleshooting_has_every_reason_why_a_request_is_refused_and_no_other() -> None:
    there = {form(text) for text in quoted("The request")}
    every = [one for value in vars(rejections).values() for one in forms(value)]
    assert [one for one in every if not one & there] == []
    assert there <= set().union(*every)


def test_troubleshooting_has_every_reason_why_a_node_is_closed_and_no_other() -> None:
    assert quoted("The node") == {refusal.text for refusal in (*NODE_REFUSALS, CORDONED)}


def test_troubleshooting_names_the_event_of_every_closed_node() -> None:
    assert [reason for reason in EVENT_REASONS.values() if f"`{reason}`" not in section("The node")] == []


def test_troubleshooting_quotes_what_a_failed_bind_says() -> None:
    room = ROOT / "neuron_plugin" / "placement"
    source = "".join(
        (room / name).read_text() for name in ("extender/binding.py", "extender/filter.py", "state.py", "writer.py")
    )
    named = quoted("The bind")
    assert named
    assert [text for text in named if text not in source] == []


def admission_texts() -> set[str]:
    """Every text with which the plugin refuses an Allocate, as the code words it."""
    node = a_node()
    in_use, held_down = (
        next(one.reason for one in node.snapshot.advertised(NEURON) if one.id == id_) if node.snapshot else ""
        for id_ in ("4", "3")
    )
    both = pod("train", replace(app(1, name="main"), limits={NEURON.value: "1", CORE.value: "1"}))
    return {
        refused_allocate(node, "4", "5", "6", "7"),
        refused_allocate(node, "3"),
        refused_allocate(LocalNode(NoFile(()), NoProcess())),
        str(both.request),
        *(refused([["3"]], reason) for reason in (in_use, held_down, "1 uncorrected SRAM error")),
        refused([["5"]], DISABLED_REASON),
        refused([["17"]]),
        refused([[]]),
        refused([["3", "3"]]),
    }


@dataclass(frozen=True)
class NoFile:
    """A checkpoint with these entries that the kubelet never writes again."""

    entries: tuple[CheckpointEntry, ...]

    def version(self) -> tuple[int, int, int]:
        return 1, 1, 1

    def read(self) -> Checkpoint:
        return Checkpoint(self.entries, self.version())


class NoProcess:
    """Cgroups in which a process of every pod lives."""

    def is_populated(self, _uid: str) -> bool:
        return True


def a_node() -> LocalNode:
    """A node on which serve has two cores, and processes of old, which was deleted long ago, are alive."""
    old, times = PodUid(uid_of("old")), [0.0]
    node = LocalNode(
        NoFile(
            (
                CheckpointEntry(uid_of("serve"), "app", CORE.value, frozenset({"8", "9"}), {}, ()),
                CheckpointEntry(old, "app", NEURON.value, frozenset({"3"}), {}, ()),
            )
        ),
        NoProcess(),
        clock=lambda: times[-1],
    )
    node.see_inventory(inventory())
    live = {one.uid: one for one in (pod("serve", app(2, CORE)), pod("old", app(1)))}
    node.see_pods(NodePods(live))
    node.see_pods(node.pods.without(old, stopped=False))
    assert node.snapshot
    times.append(60.0)
    node.look_again()
    return node


def refused_allocate(node: LocalNode, *ids: str) -> str:
    """Why an Allocate of these devices is refused, which only the pod train can have asked for."""
    if node.snapshot:
        wanted = pod("train", app(len(ids)))
        node.see_pods(node.pods.with_pod(wanted))
    allocator = Allocator(node, PluginSettings(node_name="node"), None, new_counts())
    # Faked time: the call waits some seconds before it refuses.
    with pytest.raises(AllocationRefusedError) as error, asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(allocator.allocate(NEURON.value, ids))
    return str(error.value)


def refused(containers: list[list[str]], reason: str = "") -> str:
    devices = tuple(AdvertisedDevice(str(number), healthy=not reason, reason=reason) for number in range(16))
    with pytest.raises(AllocationRefusedError) as error:
        checked_ids(NEURON.value, Edition(1, devices), containers)
    return str(error.value)


def test_troubleshooting_has_every_text_of_an_admission_error_and_no_other() -> None:
    assert quoted("A pod failed with UnexpectedAdmissionError") == admission_texts()


RAISED = {
    # no machine, malformed (2), unknown or unhealthy ids; a conflict, an unservable pod, an unlinked set are `_refused`
    "AllocationRefusedError": 5,
}
"""How often the code raises what the kubelet shows in a pod's status; each is in ``admission_texts``."""


def test_p82_a_new_way_to_refuse_is_on_the_page_too() -> None:
    source = "".join(
        file.read_text() for room in ("kubelet", "plugin") for file in (ROOT / "neuron_plugin" / room).glob("*.py")
    )
    raised = Counter(name for name in re.findall(r"raise (\w+)\(", source) if name in RAISED)
    assert raised == RAISED, "put the text into troubleshooting.md and admission_texts, then count it here"
    assert source.count("raise self._refused(") == 3, "a conflict, an unservable pod, an unlinked set"


def test_troubleshooting_names_all_events_and_none_that_are_not_there() -> None:
    named = quoted("Events of the plugin on a pod") | quoted("Events of the placement controller on a pod")
    assert {"AllocationRefused", "NeuronWaiting"} <= named <= set(EventReason)
    text = (DOCS / "troubleshooting.md").read_text()
    assert [reason.value for reason in EventReason if f"`{reason}`" not in text] == []


def test_troubleshooting_names_checks_of_the_doctor_that_exist() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    named = {
        name for found in re.findall(r"checks? ((?:`[a-z-]+`(?: and )?)+)", text) for name in found.split("`")[1::2]
    }
    assert named
    assert named <= {check.name for check in CHECKS}


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=identified)
def test_a_page_keeps_to_a_width_that_diffs_can_show(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []
