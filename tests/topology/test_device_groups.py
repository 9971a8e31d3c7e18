"""Device groups are those of AWS's published maps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from neuron_plugin.topology.device_groups import GROUP_SIZES, device_groups


def test_the_ids_are_those_that_the_efa_driver_publishes() -> None:
    groups = device_groups("trn1.32xlarge")
    assert groups[0] == {1: "0000:10:1a.0", 4: "88a3c6ad1661fe1d", 8: "86c451036f622685", 16: "fb838249c99a6341"}


@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "ml.trn2u.48xlarge"])
def test_a_group_has_as_many_devices_as_its_size_says(instance_type: str) -> None:
    groups = device_groups(instance_type)
    assert len(groups) == 16
    for size in GROUP_SIZES[1:]:
        ids = [one[size] for one in groups]
        assert len(set(ids)) == 16 // size
        assert sum(first != second for first, second in pairwise(ids)) == 16 // size - 1


@pytest.mark.parametrize("instance_type", ["inf2.48xlarge", "trn1.2xlarge", "trn2.3xlarge", "unknown", ""])
def test_a_type_without_efa_has_no_groups(instance_type: str) -> None:
    assert device_groups(instance_type) == ()
