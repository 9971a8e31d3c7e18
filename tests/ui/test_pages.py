"""The page over HTTP: what is served, what protects it, and what it counts. A browser looks at it in test_browser."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Mapping
from datetime import datetime
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import aiohttp
import pytest

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.monitor.use import Use, UseError
from neuron_plugin.placement import ExtenderSettings, check
from neuron_plugin.placement.history import Cause
from neuron_plugin.settings import SettingsError
from neuron_plugin.ui import Picture, pages
from neuron_plugin.ui.pages import MOST_SAMPLES
from tests.cli.doubles import Cli
from tests.support.world import World
from tests.ui.site import site

STATIC = Path(str(resources.files("neuron_plugin.ui").joinpath("static")))
TOKEN = "s3cret"  # noqa: S105 - of the test
TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
DEVICE, CORE = Resource.NEURON, Resource.NEURONCORE


async def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, Mapping[str, str]]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers


class Parts(HTMLParser):
    """Tags with their attributes, and the texts of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


async def test_a_failure_beside_an_open_watch_ends_the_site_at_once() -> None:
    async def fail(session: aiohttp.ClientSession) -> None:
        async with site(World()) as url:
            await session.get(f"{url}/apis/neuron-plugin.io/v1/neuronnodes?watch=true")
            raise ZeroDivisionError

    async with aiohttp.ClientSession() as session:
        with pytest.raises(ZeroDivisionError):
            await fail(session)
    assert {task.get_name() for task in asyncio.all_tasks()} & {"picture"} == set()


async def test_every_file_is_served_and_nothing_else() -> None:
    async with site(World()) as url:
        for name in ["", *(each.name for each in STATIC.iterdir())]:
            status, text, headers = await get(f"{url}/ui/{name}")
            assert (status, text) == (200, (STATIC / (name or "index.html")).read_text())
            assert headers["X-Content-Type-Options"] == "nosniff"
        for name in ("nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "static/main.js"):
            assert (await get(f"{url}/ui/{name}"))[0] == 404


async def test_the_policy_allows_no_code_but_the_page_s_own_files() -> None:
    async with site(World()) as url:
        for path in (
            "/ui/",
            "/ui/main.js",
            "/ui/table",
            "/ui/use.json",
            "/ui/hours.json",
            "/ui/evictions.json",
            "/ui/waiting.json",
        ):
            policy = (await get(url + path))[2]["Content-Security-Policy"]
            rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
            assert rules["default-src"] == "'none'"
            assert set(rules.values()) == {"'none'", "'self'"}
            assert {"frame-ancestors", "base-uri", "form-action"} <= rules.keys()


def test_there_is_no_inline_code_and_no_address_of_another_host() -> None:
    for tag, attributes in Parts((STATIC / "index.html").read_text()).tags:
        assert tag != "style"
        assert tag != "script" or attributes["src"]
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    for file in STATIC.iterdir():
        hosts = set(re.findall(r"https?://([\w.]+)", file.read_text()))
        assert hosts <= {"www.w3.org"}, f"{file.name}: the namespace of SVG is the only URL"
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval|document\.write)\b", file.read_text())


def test_every_field_of_the_page_has_a_label() -> None:
    text = (STATIC / "index.html").read_text()
    for tag, attributes in Parts(text).tags:
        if tag in {"select", "input"}:
            assert re.search(rf"<label>[^<]+<{tag} id=\"{attributes['id']}\"", text)
    assert '<html lang="en">' in text


async def test_the_table_shows_nodes_and_pods_and_escapes_names() -> None:
    world = World()
    world.node("<b>node</b>", TRN1, unhealthy={3: "<script>ECC</script>"})
    world.held("a&b", "<b>node</b>", DEVICE, "0,1")
    world.pod("waits", DEVICE, 7)
    async with site(world) as url:
        status, text, _ = await get(f"{url}/ui/table")
    assert status == 200
    found = Parts(text)
    assert {tag for tag, _ in found.tags} & {"b", "script"} == set()
    assert {"<b>node</b>", "default/a&b: 0-1", "3: <script>ECC</script>", "waits", "main: 7 aws.amazon.com/neuron"} <= {
        each.strip() for each in found.texts
    }


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/table", "/apis/neuron-plugin.io/v1/neuronnodes", "/inspect", "/decisions"]
)
async def test_with_a_token_every_page_about_the_cluster_asks_for_it(path: str) -> None:
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    async with site(World(), TOKEN) as url:
        refused, _, headers = await get(url + path)
        assert refused == 401
        assert headers["WWW-Authenticate"].startswith("Basic realm=")
        for given in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
            assert (await get(url + path, {"Authorization": given}))[0] == 200
        for given in ("Bearer wrong", "Bearer ", f"Basic {TOKEN}", "Basic ", f"Digest {TOKEN}", basic, "Basic \u00e9"):
            assert (await get(url + path, {"Authorization": given}))[0] == 401
        assert (await get(f"{url}/readyz"))[0] == 200


async def test_the_bare_address_leads_to_the_page_and_an_icon_is_there() -> None:
    async with site(World()) as url:
        for path in ("/", "/ui"):
            status, text, headers = await get(url + path)
            assert (status, text) == (200, (STATIC / "index.html").read_text())
            assert headers["Content-Type"] == "text/html; charset=utf-8"
        status, text, headers = await get(f"{url}/favicon.ico")
        assert (status, text, headers["Content-Type"]) == (
            200,
            (STATIC / "icon.svg").read_text(),
            "image/svg+xml; charset=utf-8",
        )


async def test_use_over_time_is_remembered() -> None:
    world = World()
    world.node("ring", INF2)
    async with site(world) as url:
        for _ in range(200):
            async with aiohttp.ClientSession() as session, session.get(f"{url}/ui/use.json") as answer:
                found = await answer.json()
            if found["samples"]:
                break
    (sample,) = found["samples"]
    assert sample[1:] == [0, 12, 0, 0, 0]
    assert abs(datetime.fromisoformat(sample[0]).timestamp() - time.time()) < 60


async def test_use_before_a_restart_comes_from_prometheus_as_soon_as_it_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "SAMPLE_SECONDS", 0.02)
    world, broken = World(), 2

    async def remembered(url: str, since: float, until: float, step_seconds: float) -> list[Use]:
        nonlocal broken
        assert (url, step_seconds) == ("http://prometheus", 0.02)
        assert until - since == pytest.approx(0.02 * (MOST_SAMPLES - len(picture._samples)))
        broken -= 1
        if broken >= 0:
            raise UseError("it is away")
        return [Use(int(since), 1, 2, 3, 4, 5), Use(int(until), 5, 4, 3, 2, 1)]

    monkeypatch.setattr(pages, "past_use", remembered)
    world.node("ring", INF2)
    picture = Picture(prometheus_url="http://prometheus")
    running = asyncio.create_task(picture.run(world.state))
    while broken >= 0 or len(picture._samples) < 6:
        await asyncio.sleep(0.01)
    running.cancel()
    found = list(picture._samples)
    assert [each[1:] for each in found[:2]] == [(1, 2, 3, 4, 5), (5, 4, 3, 2, 1)]
    assert {each[1:] for each in found[2:]} == {(0, 12, 0, 0, 0)}
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert len(caplog.records) == 1, "it is said once"


async def test_what_waiting_pods_can_expect_is_worked_out_once_for_all_pages() -> None:
    world = World()
    world.node("ring", INF2)
    world.pod("some", DEVICE, 13)
    async with site(world) as url, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"{url}/ui/waiting.json") as answer:
                (found,) = (await answer.json())["waiting"]
            assert (found["pod"], found["standing"]) == ("default/some", "never")
            world.node("ring", TRN1)  # the second page is given what the first one was


async def test_without_an_api_server_a_pod_has_no_events() -> None:
    async with site(World()) as url:
        status, text, headers = await get(f"{url}/ui/events/ml/train")
    assert (status, text) == (200, '{"events":[],"problem":""}')
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_evictions_of_the_last_hour_are_served() -> None:
    world = World()
    pod, made_for = (PodReference(PodUid(name), "ml", name) for name in ("small", "big"))
    world.state.history.evicted(Cause.MOVE, pod, "node-1", made_for, "node-2")
    async with (
        site(world) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/ui/evictions.json") as answer,
    ):
        found = await answer.json()
    assert found["seconds"] == 3600
    assert abs(datetime.fromisoformat(found["evictions"][0].pop("at")).timestamp() - time.time()) < 60
    assert found["evictions"] == [
        {"cause": "move", "pod": "ml/small", "node": "node-1", "madeFor": "ml/big", "target": "node-2"}
    ]


def test_a_token_or_prometheus_without_the_page_and_an_empty_token_are_refused(tmp_path: Path, cli: Cli) -> None:
    with pytest.raises(SettingsError, match="ui is off"):
        check(ExtenderSettings(ui_token_file=tmp_path / "token"))
    with pytest.raises(SettingsError, match="prometheus-url is http://x, but ui is off"):
        check(ExtenderSettings(prometheus_url="http://x"))
    (tmp_path / "token").write_text("\n")
    shown = cli("extender", "--ui", "--ui-token-file", tmp_path / "token")
    assert shown.status == 2
    assert "which is empty: expected a token in it" in shown.err
