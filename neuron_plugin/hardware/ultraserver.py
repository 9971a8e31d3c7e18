"""Which UltraServer this machine is part of, if any.

The driver elects that over the links between servers and prints it beside its devices; while it elects (up to 600 s)
it prints ``busy``. Source: Neuron driver 2.24.7, class attributes; modes differ between versions (``1,3,4``,
``1,2,4``), so they are kept as read.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.hardware.sysfs import Sysfs, SysfsError

_NO_SERVER = {"", "0000000000000000", "busy"}
_NO_NODE = {"", "-1", "busy"}


@dataclass(frozen=True, slots=True)
class UltraServer:
    """Ids of this node in its UltraServer of two and of four nodes; empty where there is none.

    ``mode`` is the driver's list of possible modes, such as ``1,3,4``.
    """

    mode: str
    server_id_2: str
    node_id_2: str
    server_id_4: str
    node_id_4: str


def read_ultraserver(sysfs: Sysfs) -> UltraServer | None:
    """The UltraServer of this node; None where it is in none, or while the election runs."""
    found = UltraServer(
        mode=_said(sysfs, "ultraserver_mode", {"busy"}),
        server_id_2=_said(sysfs, "server_id_2", _NO_SERVER),
        node_id_2=_said(sysfs, "node_id_2", _NO_NODE),
        server_id_4=_said(sysfs, "server_id_4", _NO_SERVER),
        node_id_4=_said(sysfs, "node_id_4", _NO_NODE),
    )
    return found if found.server_id_2 or found.server_id_4 else None


def _said(sysfs: Sysfs, name: str, nothing: set[str]) -> str:
    try:
        text = sysfs.elected(name)
    except SysfsError:
        return ""  # other products have other files; none of them matters to what is handed out
    return "" if text in nothing else text
