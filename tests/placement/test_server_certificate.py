from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from neuron_plugin.placement.server_certificate import ServerCertificate
from neuron_plugin.settings import SettingsError
from neuron_plugin.simulation import ExtenderCallError
from tests.support.manifests import pod_manifest
from tests.support.scheduler import StandInScheduler
from tests.support.served import TRN1, closed, serving
from tests.support.world import DEVICE, World


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def files(directory: Path, certificate: trustme.LeafCert) -> tuple[Path, Path]:
    chain, key = directory / "tls.crt", directory / "tls.key"
    chain.write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    return chain, key


def client_context(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        certificate.configure_cert(context)
    return context


async def test_t11_tls_serves_and_a_replaced_certificate_serves_new_handshakes(
    world: World, authority: trustme.CA, tmp_path: Path
) -> None:
    world.node("node", TRN1)
    certificate = ServerCertificate(*files(tmp_path, authority.issue_cert("127.0.0.1")), None)
    async with serving(world, certificate.context) as port:
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=client_context(authority)) as scheduler:
            assert (await scheduler.filter(pod_manifest("pod", DEVICE, 4), ["node"])).nodes == ["node"]

        first = await _serial(port, authority)
        assert not certificate.reload_if_changed()
        files(tmp_path, authority.issue_cert("127.0.0.1"))
        assert certificate.reload_if_changed()
        assert await _serial(port, authority) != first


async def test_t11_under_mutual_tls_a_caller_without_a_certificate_is_refused(
    world: World, authority: trustme.CA, tmp_path: Path
) -> None:
    world.node("node", TRN1)
    ca = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(str(ca))
    certificate = ServerCertificate(*files(tmp_path, authority.issue_cert("127.0.0.1")), ca)
    async with serving(world, certificate.context) as port:
        known = client_context(authority, authority.issue_cert("kube-scheduler"))
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=known) as scheduler:
            assert (await scheduler.filter(pod_manifest("pod", DEVICE, 4), ["node"])).nodes == ["node"]
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=client_context(authority)) as unknown:
            with pytest.raises(ExtenderCallError):
                await unknown.filter(pod_manifest("pod", DEVICE, 4), ["node"])


def test_a_half_replaced_certificate_is_left_for_the_next_look(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = files(tmp_path, authority.issue_cert("127.0.0.1"))
    certificate = ServerCertificate(chain, key, None)
    other = authority.issue_cert("127.0.0.1")

    chain.write_bytes(other.cert_chain_pems[0].bytes())
    assert not certificate.reload_if_changed()
    assert "certificate not reloaded" in caplog.text
    key.write_bytes(other.private_key_pem.bytes())
    assert certificate.reload_if_changed()


async def test_t11_a_half_replaced_certificate_leaves_the_old_one_serving(
    world: World, authority: trustme.CA, tmp_path: Path
) -> None:
    chain, key = files(tmp_path, authority.issue_cert("127.0.0.1"))
    certificate = ServerCertificate(chain, key, None)
    async with serving(world, certificate.context) as port:
        before = await _serial(port, authority)
        chain.write_bytes(authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())

        assert not certificate.reload_if_changed()

        assert await _serial(port, authority) == before


async def test_t11_under_mutual_tls_a_replaced_ca_lets_its_clients_in(
    world: World, authority: trustme.CA, tmp_path: Path
) -> None:
    world.node("node", TRN1)
    ca, successor = tmp_path / "ca.crt", trustme.CA()
    authority.cert_pem.write_to_path(str(ca))
    certificate = ServerCertificate(*files(tmp_path, authority.issue_cert("127.0.0.1")), ca)
    async with serving(world, certificate.context) as port:
        successor.cert_pem.write_to_path(str(ca))
        assert certificate.reload_if_changed()

        known = client_context(authority, successor.issue_cert("kube-scheduler"))
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=known) as scheduler:
            assert (await scheduler.filter(pod_manifest("pod", DEVICE, 4), ["node"])).nodes == ["node"]


async def _serial(port: int, authority: trustme.CA) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(authority))
    found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    await closed(writer)
    return str(found)


def test_t11_a_file_that_cannot_be_used_is_named_with_its_setting(authority: trustme.CA, tmp_path: Path) -> None:
    chain, key = files(tmp_path, authority.issue_cert("127.0.0.1"))
    ca, other, none = tmp_path / "ca.crt", tmp_path / "other.key", tmp_path / "none"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    empty, cut = tmp_path / "empty", tmp_path / "cut"
    empty.touch()
    cut.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")

    def refused(*given: Path | None) -> str:
        with pytest.raises(SettingsError) as error:
            ServerCertificate(*given)  # type: ignore[arg-type]  # three of them
        return str(error.value)

    assert refused(none, key, None) == f"tls-cert is {none}: No such file or directory"
    assert refused(chain, tmp_path, None) == f"tls-key is {tmp_path}: Is a directory"
    assert refused(empty, key, None) == f"tls-cert is {empty}, which holds no certificate in PEM"
    assert refused(chain, chain, None) == f"tls-key is {chain}, which holds no private key in PEM"
    assert refused(chain, other, None).startswith(
        f"tls-cert {chain} with tls-key {other}: key values mismatch; expected"
    )
    assert refused(cut, key, None).startswith(f"tls-cert {cut} with tls-key {key}: ")
    assert refused(chain, key, key) == f"client-ca is {key}, which holds no certificate in PEM"
    assert refused(chain, key, cut).startswith(f"client-ca is {cut}: ")
    assert refused(chain, key, cut).endswith("expected certificates in PEM")
    ServerCertificate(chain, key, ca)
