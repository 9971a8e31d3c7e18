from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.placement.context import Times
from neuron_plugin.placement.settings import ExtenderSettings, MakeRoom, check
from neuron_plugin.settings import SettingsError, load


@pytest.mark.parametrize(
    "settings",
    [
        ExtenderSettings(),
        ExtenderSettings(address="::1"),
        ExtenderSettings(address="0.0.0.0", insecure=True),  # noqa: S104 - what is tested
        ExtenderSettings(address="0.0.0.0", tls_cert=Path("c"), tls_key=Path("k"), client_ca=Path("a")),  # noqa: S104
    ],
)
def test_t11_loopback_tls_and_what_was_allowed_by_name_are_accepted(settings: ExtenderSettings) -> None:
    check(settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (ExtenderSettings(address="0.0.0.0"), "insecure"),  # noqa: S104 - what is tested
        (ExtenderSettings(tls_cert=Path("c")), "go together"),
        (ExtenderSettings(tls_key=Path("k")), "go together"),
        (ExtenderSettings(client_ca=Path("a")), "without tls-cert"),
        (ExtenderSettings(webhook_port=9443), "by TLS only"),
        (ExtenderSettings(make_room=MakeRoom.ACT, leader_election=False), "leader-election is off"),
        (ExtenderSettings(ui_token_file=Path("t")), "ui is off"),
    ],
)
def test_t11_what_would_serve_less_safely_than_it_looks_is_refused(settings: ExtenderSettings, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        check(settings)


def test_flags_environment_and_defaults_meet_in_one_struct() -> None:
    settings = load(ExtenderSettings, {"port": "9001"}, {"NEURON_PLUGIN_DIALECTS": "vendor", "NEURON_PLUGIN_PORT": "1"})

    assert settings.port == 9001
    assert [dialect.value for dialect in settings.dialects] == ["vendor"]
    assert settings.address == "127.0.0.1"


def test_the_answer_stays_below_the_schedulers_own_deadline_by_default() -> None:
    assert Times().answer < 5


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (ExtenderSettings(), "http://127.0.0.1:12345"),
        (ExtenderSettings(address="0.0.0.0", port=1), ""),  # noqa: S104 - what is tested
        (ExtenderSettings(address="::", advertise_address="fd00::7"), "http://[fd00::7]:12345"),
        (ExtenderSettings(address="10.0.0.1", tls_cert=Path("c")), "https://10.0.0.1:12345"),
        (ExtenderSettings(address="0.0.0.0", advertise_address="10.0.0.7"), "http://10.0.0.7:12345"),  # noqa: S104 - as above
        (ExtenderSettings(port=0), ""),
    ],
)
def test_where_a_replica_is_reached_follows_from_its_addresses(settings: ExtenderSettings, url: str) -> None:
    assert settings.url == url
