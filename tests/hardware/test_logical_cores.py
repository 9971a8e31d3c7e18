"""P28: who decides how many physical cores a logical one has, and what is legal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from neuron_plugin.hardware.logical_cores import LogicalCoreSize, choose_logical_core_size


def chosen(
    *, environ: Mapping[str, str] | None = None, host_file: str = "", default: int = 2, largest: int = 2, cores: int = 8
) -> LogicalCoreSize:
    """On a Trn2, unless said otherwise."""
    return choose_logical_core_size(
        default=default, largest=largest, cores_per_device=cores, environ=environ or {}, host_file=host_file
    )


def test_without_a_word_the_hardware_decides() -> None:
    assert chosen() == LogicalCoreSize(2, "hardware default")


def test_the_hosts_file_overrides_the_hardware() -> None:
    assert chosen(host_file="NEURON_LOGICAL_NC_CONFIG=1\n") == LogicalCoreSize(1, "logical_nc_config")


def test_the_environment_overrides_the_hosts_file() -> None:
    found = chosen(environ={"NEURON_LOGICAL_NC_CONFIG": "2"}, host_file="NEURON_LOGICAL_NC_CONFIG=1")
    assert found == LogicalCoreSize(2, "NEURON_LOGICAL_NC_CONFIG")


def test_the_newer_name_overrides_the_older_one() -> None:
    older = {"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}
    assert chosen(environ=older) == LogicalCoreSize(1, "NEURON_RT_VIRTUAL_CORE_SIZE")
    assert chosen(environ=older | {"NEURON_LOGICAL_NC_CONFIG": "2"}).size == 2


def test_an_empty_variable_says_nothing() -> None:
    assert chosen(environ={"NEURON_LOGICAL_NC_CONFIG": ""}) == LogicalCoreSize(2, "hardware default")


@pytest.mark.parametrize(
    "text",
    [
        "NEURON_LOGICAL_NC_CONFIG=1",
        "  NEURON_LOGICAL_NC_CONFIG = 1  \n",
        "export NEURON_LOGICAL_NC_CONFIG=1\n",
        'NEURON_LOGICAL_NC_CONFIG="1"\n',
        "# set by cloud-init\nNEURON_LOGICAL_NC_CONFIG=1\n",
        "NEURON_LOGICAL_NC_CONFIG=1  # as the trainers want it\r\n",
        "NEURON_LOGICAL_NC_CONFIG=2\nNEURON_LOGICAL_NC_CONFIG=1\n",
        "1\n",
    ],
)
def test_the_hosts_file_is_read_as_a_shell_would(text: str) -> None:
    assert chosen(host_file=text) == LogicalCoreSize(1, "logical_nc_config")


@pytest.mark.parametrize("text", ["\n", "# NEURON_LOGICAL_NC_CONFIG=1\n", "  # nothing here\n\n"])
def test_a_hosts_file_without_a_setting_says_nothing(text: str) -> None:
    assert chosen(host_file=text) == LogicalCoreSize(2, "hardware default")


@pytest.mark.parametrize("text", ["0", "3", "4", "16", "-1", "x", "1.0", "²", "9" * 50])
def test_an_illegal_value_is_passed_over_and_reported(text: str) -> None:
    found = chosen(host_file=f"NEURON_LOGICAL_NC_CONFIG={text}\n")
    assert (found.size, found.source) == (2, "hardware default")
    assert len(found.problems) == 1
    assert "logical_nc_config says" in found.problems[0]
    assert "at most 2, that divides 8 cores" in found.problems[0]


def test_after_an_illegal_variable_the_next_source_is_asked() -> None:
    found = chosen(environ={"NEURON_LOGICAL_NC_CONFIG": "7"}, host_file="NEURON_LOGICAL_NC_CONFIG=1")
    assert (found.size, found.source) == (1, "logical_nc_config")
    assert "NEURON_LOGICAL_NC_CONFIG says '7'" in found.problems[0]


def test_products_before_trn2_know_only_one() -> None:
    found = chosen(host_file="NEURON_LOGICAL_NC_CONFIG=2", default=1, largest=1, cores=2)
    assert found.size == 1
    assert found.problems


def test_a_larger_size_is_legal_where_the_product_allows_it() -> None:
    assert chosen(host_file="NEURON_LOGICAL_NC_CONFIG=4", largest=8).size == 4
