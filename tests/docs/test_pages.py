"""The hand-written pages: links lead somewhere, commands work, quoted texts are those of the code.

A ``console`` block holds commands that need no cluster: each is run here, in order, one directory for a page, and what
is shown below it must be in its output ("..." for what is left out). ``sh`` blocks are tried by ``test_commands``.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from neuron_plugin.plugin.pods import node_pod
from neuron_plugin.plugin.quarantine import Suspect, described
from neuron_plugin.plugin.wording import NO_MACHINE, conflict_text

from neuron_plugin.allocation import ContainerSpec, Holder, Holding, PodReference, PodUid, Rejection, Resource
from neuron_plugin.allocation import rejection as rejections
from neuron_plugin.cli.main import main
from neuron_plugin.extender.events import EVENT_REASONS
from neuron_plugin.extender.state import NODE_REFUSALS
from neuron_plugin.hardware import Process
from neuron_plugin.inspection.checks import CHECKS
from neuron_plugin.kubelet import AdvertisedDevice
from neuron_plugin.kubelet.advertisement import Edition
from neuron_plugin.kubelet.device_plugin import AllocationRefusedError, checked_ids
from neuron_plugin.topology import Unit
from tests.charts.rendering import CHART
from tests.support.manifests import shipped_geometry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", CHART / "README.md", *sorted(DOCS.glob("decisions/*.md"))]
"""All that people read here but the changelog."""

HAND_WRITTEN = [page for page in PAGES if "Made by docs/generate.py" not in page.read_text()]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

TRN1 = shipped_geometry("trn1.32xlarge")
NEURON, CORE = Resource.NEURON, Resource.NEURONCORE
TRAIN = PodReference(PodUid("1"), "default", "train")
SERVE = PodReference(PodUid("2"), "default", "serve")

QUOTED_REFUSALS = {
    "unsupported_count": (Unit.DEVICE, 7),
    "too_many": (Unit.DEVICE, 17),
    "too_many_together": (Unit.DEVICE, 1),
    "unhealthy": (Unit.DEVICE, 4),
    "not_free": (Unit.CORE, 32),
    "fragmented": (Unit.DEVICE, 4),
}
"""With which unit and count troubleshooting.md quotes each refusal."""


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
        told = re.search(r"# exit status (\d+)", self.line)
        return int(told[1]) if told else 0


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


@pytest.mark.parametrize("page", [page for page in HAND_WRITTEN if steps(page)], ids=identified)
def test_p82_every_command_that_needs_no_cluster_does_what_its_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in steps(page):
        assert step.line.startswith("neuron-plugin "), f"{page.name}: {step.line} cannot be run by this test"
        assert not set("|<>;&$`") & set(step.line), f"{page.name}: {step.line} needs a shell"
        status = main(step.arguments)
        printed = capsys.readouterr()
        assert status == step.status, f"{page.name}: {step.line}: {printed.err}"
        lines = {line.strip() for line in printed.out.splitlines()}
        assert [each for each in step.shown if each.strip() not in lines] == [], f"{page.name}: {step.line}"


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=identified)
def test_yaml_on_a_page_can_be_read(page: Path) -> None:
    for text in blocks(page, "yaml"):
        assert list(yaml.safe_load_all(text))


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


def refusal_texts() -> set[str]:
    """One text of each kind of refusal; a new kind has to be told here, and on the page."""
    made: dict[str, Callable[..., Rejection]] = {
        name: function
        for name, function in inspect.getmembers(rejections, inspect.isfunction)
        if inspect.signature(function).return_annotation == "Rejection"
    }
    assert made.keys() == QUOTED_REFUSALS.keys()
    texts = set()
    for name, function in made.items():
        unit, count = QUOTED_REFUSALS[name]
        known = {"geometry": TRN1, "unit": unit, "count": count}
        texts.add(function(**{each: known[each] for each in inspect.signature(function).parameters}).text)
    return texts


def test_troubleshooting_has_every_reason_why_a_request_is_refused_and_no_other() -> None:
    assert quoted("The request") == refusal_texts()


def test_troubleshooting_has_every_reason_why_a_node_is_closed_and_no_other() -> None:
    assert quoted("The node") == {refusal.text for refusal in NODE_REFUSALS}


def test_troubleshooting_names_the_event_of_every_closed_node() -> None:
    assert [reason for reason in EVENT_REASONS.values() if f"`{reason}`" not in section("The node")] == []


def test_troubleshooting_quotes_what_a_failed_bind_says() -> None:
    source = (ROOT / "neuron_plugin/extender/binding.py").read_text()
    named = quoted("The bind")
    assert named
    assert [text for text in named if text not in source] == []


def admission_texts() -> set[str]:
    """Every text with which the plugin refuses an Allocate, as the code words it."""
    held = Holder(SERVE, (Holding("app", CORE, TRN1.cores_mask((8, 9))),))
    both = node_pod(TRAIN, [ContainerSpec("main", limits={NEURON.value: "1", CORE.value: "1"})], {})
    assert both
    vanished = Suspect(
        PodReference(PodUid("3"), "default", "old"), TRN1.cores_mask((6, 7)), 0.0, 30.0, seen=still_open()
    )
    sick = ("held by pod default/serve as aws.amazon.com/neuroncore", "1 uncorrected SRAM error", vanished.reason)
    return {
        conflict_text(TRN1, NEURON, (4, 5, 6, 7), f"pod {TRAIN}", [held]),
        both.problem,
        NO_MACHINE,
        *(refused([["3"]], reason) for reason in sick),
        refused([["17"]]),
        refused([[]]),
        refused([["3", "3"]]),
    }


def still_open() -> str:
    return described([(3, Process(4711, "python", uses=True))])


def refused(containers: list[list[str]], reason: str = "") -> str:
    devices = tuple(AdvertisedDevice(str(number), healthy=not reason, reason=reason) for number in range(16))
    with pytest.raises(AllocationRefusedError) as error:
        checked_ids(NEURON.value, Edition(1, devices), containers)
    return str(error.value)


def test_troubleshooting_has_every_text_of_an_admission_error_and_no_other() -> None:
    assert quoted("A pod failed with UnexpectedAdmissionError") == admission_texts()


RAISED = {
    # a conflict, an unservable pod, an unlinked set, no machine; malformed (2), unknown or unhealthy ids
    "AllocationRefusedError": 8,
    "NotYetError": 1,
}
"""How often the code raises what the kubelet shows in a pod's status; each is in ``admission_texts``, or in "waits"."""


def test_p82_a_new_way_to_refuse_is_on_the_page_too() -> None:
    source = "".join(
        file.read_text() for room in ("kubelet", "plugin") for file in (ROOT / "neuron_plugin" / room).glob("*.py")
    )
    raised = Counter(name for name in re.findall(r"raise (\w+)\(", source) if name in RAISED)
    assert raised == RAISED, "put the text into troubleshooting.md and admission_texts, then count it here"


def test_troubleshooting_has_the_texts_of_a_container_that_waits() -> None:
    waits = {f"the container has to wait: {still_open()}", "the container has to wait: neuron3 is being reset"}
    assert quoted("A container waits in CreateContainerConfigError") == waits
    gate = (ROOT / "neuron_plugin/plugin/gate.py").read_text()
    assert "the container has to wait: " in gate
    assert "is being reset" in gate


def test_troubleshooting_names_events_of_the_plugin_that_exist() -> None:
    source = "".join(file.read_text() for file in (ROOT / "neuron_plugin/plugin").rglob("*.py"))
    named = quoted("Events of the plugin on a pod") | set(
        re.findall(r"`(NeuronDevice\w+)`", section("A device is unhealthy"))
    )
    assert {"DeviceConflict", "NeuronDeviceUnhealthy"} <= named
    assert [reason for reason in named if f'"{reason}"' not in source] == []


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
