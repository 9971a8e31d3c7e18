from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from neuron_plugin.inspection.checks import CHECKS, Check, examine
from neuron_plugin.inspection.facts import ClusterFacts, Facts
from neuron_plugin.inspection.findings import Finding, Findings, Level, Unknown, note, ok
from tests.inspection.cases import facts_of, with_host, with_kubelet
from tests.inspection.doubles import MakeNode

UNKNOWN = Unknown("it could not be seen", "look there")


def test_a_node_on_which_all_is_well_gives_nothing_but_ok(well: Facts) -> None:
    assert {finding.level for finding in examine(well)} == {Level.OK}


def test_every_check_has_a_name_of_its_own_and_a_line_in_the_list() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.looks_at for check in CHECKS)


def test_a_check_that_fails_itself_is_reported_and_the_others_are_made(well: Facts) -> None:
    def broken(_facts: Facts) -> Findings:
        yield ok("so far")
        raise KeyError("nothing")

    first, second = examine(well, [Check("broken", "", broken), CHECKS[0]])
    assert (first.check, first.level, first.checked) == ("broken", Level.NOTE, False)
    assert "KeyError('nothing')" in first.seen
    assert (second.check, second.level) == (CHECKS[0].name, Level.OK)


@pytest.mark.parametrize(("found", "said"), [([], [ok("fine")]), ([note("one")], [note("one")])])
def test_ok_is_said_only_where_nothing_else_is(well: Facts, found: list[Finding], said: list[Finding]) -> None:
    def ask(_facts: Facts) -> Findings:
        yield from found
        return "fine"

    assert Check("name", "", ask).findings(well) == said


@pytest.mark.parametrize("hidden", list(product([False, True], repeat=4)))
def test_whatever_is_not_known_every_check_answers_and_none_fails(
    well: Facts, hidden: tuple[bool, bool, bool, bool]
) -> None:
    host, kubelet, cluster, users = hidden
    facts = with_host(well, nodes=UNKNOWN, runtime_files=UNKNOWN) if host else well
    if kubelet:
        facts = with_kubelet(facts, unreadable=UNKNOWN, plugins=(), allocatable=UNKNOWN, pods=UNKNOWN)
    facts = replace(facts, cluster=UNKNOWN if cluster else facts.cluster, users=UNKNOWN if users else facts.users)
    found = list(examine(facts))
    assert {finding.check for finding in found} == {check.name for check in CHECKS}
    assert all(finding.checked or "it could not be seen" in finding.seen for finding in found)
    assert {finding.level for finding in found} <= {Level.OK, Level.NOTE}


def test_a_machine_without_anything_gives_answers_too(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    facts = with_kubelet(facts_of(node), missing=True, own_socket=None, plugins=(), allocatable=UNKNOWN, pods=UNKNOWN)
    found = list(examine(replace(facts, cluster=ClusterFacts("worker-1"))))
    assert not [finding for finding in found if "failed itself" in finding.seen]
    assert next(finding.seen for finding in found if finding.level is Level.PROBLEM).startswith("the Neuron driver")
