"""One node inspected from outside its daemon: what is there, who holds it, what is wrong."""

from neuron_plugin.inspection.checks import CHECKS, examine
from neuron_plugin.inspection.findings import Level, Report, Unknown, report_of
from neuron_plugin.inspection.gathering import disabled_here, gather, page_of
from neuron_plugin.inspection.holders import HolderReading
from neuron_plugin.inspection.host import gather_users
from neuron_plugin.inspection.machine import (
    InspectedNode,
    look,
    node_of,
)
from neuron_plugin.inspection.reports import (
    Health,
    MachineReport,
    ShownNode,
    TopologyReport,
    machine_report,
    shown_machine,
    topology_report,
)
