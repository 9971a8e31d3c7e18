"""Sentences that reach people."""

from __future__ import annotations

from neuron_plugin.allocation import Holder, Holding
from neuron_plugin.allocation.rejection import unsupported_count
from neuron_plugin.plugin.standins import named_stand_in, nameless_stand_in
from neuron_plugin.plugin.wording import conflict_text, named, unlinked_text
from neuron_plugin.topology import Unit
from tests.plugin.world import CORE, NEURON, TRN1, devices, ref


def test_a_conflict_names_every_holder_and_only_what_is_in_the_way() -> None:
    holders = [
        Holder(
            ref("a"), (Holding("app", CORE, TRN1.cores_mask((2,))), Holding("second", CORE, TRN1.cores_mask((30,))))
        ),
        Holder(nameless_stand_in(1), (Holding("", NEURON, devices(2, 3)),)),
    ]
    assert conflict_text(TRN1, NEURON, (1, 2), "pod x/y", holders) == (
        "aws.amazon.com/neuron 1,2 cannot be given to pod x/y: pod default/a holds aws.amazon.com/neuroncore 2; "
        "a pod not yet confirmed holds aws.amazon.com/neuron 2,3"
    )


def test_unlinked_devices_come_with_the_reason_there_were_no_better() -> None:
    text = unlinked_text(NEURON, (0, 5), unsupported_count(TRN1, Unit.DEVICE, 2))
    assert text.startswith("aws.amazon.com/neuron 0,5 are not linked. Instance type trn1.32xlarge does not support")


def test_a_pod_is_named_as_soon_as_its_name_is_known() -> None:
    assert named(ref("a")) == "pod default/a"
    assert named(named_stand_in("x", "y")) == "pod x/y"
    assert named(nameless_stand_in(0)) == "a pod not yet confirmed"
