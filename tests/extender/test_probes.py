from __future__ import annotations

from tests.extender.running import Extender


async def test_p78_alive_while_the_loop_answers_and_ready_while_nothing_is_unmet(extender: Extender) -> None:
    assert await extender.get("/healthz", health=True) == (200, "ok\n")
    assert await extender.get("/readyz", health=True) == (200, "ok\n")

    extender.daemon.readiness.unmet("leader", "another replica leads")
    assert await extender.get("/readyz", health=True) == (503, "another replica leads\n")
    assert (await extender.get("/healthz", health=True))[0] == 200


async def test_probes_and_metrics_are_on_both_ports_and_verbs_on_one(extender: Extender) -> None:
    for health in (True, False):
        status, text = await extender.get("/metrics", health=health)
        assert status == 200
        assert "neuron_extender_reservations 0.0" in text
        assert 'neuron_extender_watch_age_seconds{kind="pods"}' in text

    assert (await extender.get("/filter", health=True))[0] == 404
    assert (await extender.get("/filter"))[0] == 405


async def test_the_state_is_shown_without_a_certificate_on_the_health_port(extender: Extender) -> None:
    status, text = await extender.get("/inspect", health=True)
    assert (status, text.split()[:2]) == (200, ["NODE", "TYPE"])
    assert (await extender.get("/inspect/ghost", health=True)) == (404, "node ghost is not known here\n")
    assert (await extender.get("/explain/default/ghost", health=True))[0] == 404
