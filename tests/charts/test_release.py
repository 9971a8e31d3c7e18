"""The release, made from an image without a registry: versions, digest, chart, SBOM, provenance, signatures."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import re
import shutil
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from neuron_plugin import __version__
from tests.charts.rendering import CHART, REPOSITORY, helm

CHANGELOG = f"""\
# Changelog

## {__version__} - 2026-12-01

### Added

- One thing,
  in two lines.

## 0.0.9

- Old
"""
PLATFORMS = ("amd64", "arm64")
STATUS = """\
Package: libudev1
Status: install ok installed
Architecture: {architecture}
Version: 257.8-1~deb13u2
Description: library
 over two lines: here

Package: removed
Status: deinstall ok config-files
Architecture: {architecture}
Version: 1
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", REPOSITORY / ".ci/release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Image:
    """An OCI layout in the making."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return f"sha256:{digest}"

    def document(self, content: object) -> str:
        return self.blob(json.dumps(content).encode())

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(file, "w") as tar:
            for name, content in self.files.items():
                _add(tar, name, content)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def layer(path: str, content: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, path, content.encode())
    return gzip.compress(buffer.getvalue(), mtime=0)  # the same digest whenever it is made


def image(status: str = STATUS) -> tuple[Image, str]:
    """An image for two platforms, and its digest."""
    made = Image()
    manifests = []
    for architecture in PLATFORMS:
        layers = [layer("var/lib/dpkg/status", status.format(architecture=architecture)), layer("opt/app", "ours")]
        listed = [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": made.blob(each)} for each in layers
        ]
        digest = made.document({"layers": listed})
        manifests.append({"platform": {"os": "linux", "architecture": architecture}, "digest": digest})
    attestation = {"platform": {"os": "unknown", "architecture": "unknown"}, "digest": made.document({"layers": []})}
    top = made.document({"manifests": [*manifests, attestation]})
    made.files["index.json"] = json.dumps({"manifests": [{"digest": top}]}).encode()
    return made, top


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository at the moment of a release, with its image built and its Python listed."""
    for file in ("Dockerfile", "neuron_plugin/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, tmp_path / file)
    shutil.copytree(CHART, tmp_path / CHART.relative_to(REPOSITORY))
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    image()[0].write(tmp_path / "dist/image.tar")
    python = {"bomFormat": "CycloneDX", "components": [{"name": "msgspec", "bom-ref": "msgspec"}]}
    (tmp_path / "dist/sbom.cdx.json").write_text(json.dumps(python), encoding="utf-8")
    return tmp_path


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, ec.EllipticCurvePublicKey]:
    private = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "cosign.pem"
    file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file, private.public_key()


def test_the_digest_is_that_of_the_image_for_all_platforms(release: ModuleType, checkout: Path) -> None:
    layout = release.Layout(checkout / "dist/image.tar")
    assert layout.digest == image()[1]
    assert set(layout.platforms()) == {"linux/amd64", "linux/arm64"}


def test_a_damaged_blob_is_named(release: ModuleType, tmp_path: Path) -> None:
    made, top = image()
    made.files[f"blobs/{top.replace(':', '/')}"] += b" "
    made.write(tmp_path / "image.tar")
    with pytest.raises(release.ReleaseError, match=f"the blob {top} has another content"):
        release.Layout(tmp_path / "image.tar").platforms()


def test_the_bill_of_materials_has_python_and_the_installed_packages_of_every_platform(
    release: ModuleType, checkout: Path
) -> None:
    made = release.bill_of_materials(
        {"components": [{"bom-ref": "msgspec"}]}, release.Layout(checkout / "dist/image.tar")
    )
    assert [each["bom-ref"] for each in made["components"]] == [
        "msgspec",
        *(f"pkg:deb/debian/libudev1@257.8-1~deb13u2?arch={architecture}" for architecture in PLATFORMS),
    ]


def test_an_image_whose_base_lists_no_packages_is_refused(release: ModuleType, tmp_path: Path) -> None:
    empty = Image()
    manifest = empty.document(
        {"layers": [], "config": {"digest": empty.document({"os": "linux", "architecture": "arm"})}}
    )
    empty.files["index.json"] = json.dumps({"manifests": [{"digest": manifest}]}).encode()
    empty.write(tmp_path / "image.tar")
    with pytest.raises(release.ReleaseError, match="linux/arm has no /var/lib/dpkg/status"):
        release.bill_of_materials({}, release.Layout(tmp_path / "image.tar"))


def test_the_notes_are_the_versions_part_of_the_changelog(release: ModuleType, checkout: Path) -> None:
    text = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.notes(text, __version__) == "### Added\n\n- One thing,\n  in two lines.\n"
    with pytest.raises(release.ReleaseError, match="has no part '## 9"):
        release.notes(text, "9.9.9")


@pytest.mark.parametrize(
    ("file", "place"),
    [("neuron_plugin/__init__.py", "neuron_plugin/__init__.py"), ("Dockerfile", "Dockerfile"), (None, "neuron_plugin")],
)
def test_a_tag_that_is_not_the_version_everywhere_is_refused(
    release: ModuleType, checkout: Path, file: str | None, place: str
) -> None:
    assert release.check_version(f"v{__version__}", checkout) == __version__
    tag = f"v{__version__}" if file else "v9.9.9"
    if file:
        text = (checkout / file).read_text(encoding="utf-8")
        (checkout / file).write_text(text.replace(f'"{__version__}"', '"9.9.9"'), encoding="utf-8")
    with pytest.raises(release.ReleaseError, match=place):
        release.check_version(tag, checkout)


@pytest.mark.skipif(helm() is None, reason="no helm on the PATH: it packages the chart")
def test_chart_sbom_and_provenance_are_of_this_image_and_signed(
    release: ModuleType, checkout: Path, key: tuple[Path, ec.EllipticCurvePublicKey]
) -> None:
    repository = "registry.example.com/team/neuron-plugin"
    pushes = release.release(f"v{__version__}", repository=repository, key=key[0], revision="c0ffee", root=checkout)
    dist, digest = checkout / "dist", image()[1]
    chart, bom = dist / f"neuron-plugin-{__version__}.tgz", dist / f"neuron-plugin-{__version__}.cdx.json"
    packaged = _files(chart)
    assert yaml.safe_load(packaged["values.yaml"])["image"] | {"tag": "", "pullPolicy": ""} == {
        "repository": repository, "digest": digest, "tag": "", "pullPolicy": "",
    }  # fmt: skip
    described = yaml.safe_load(packaged["Chart.yaml"])
    assert yaml.safe_load(described["annotations"]["artifacthub.io/changes"]) == ["One thing, in two lines."]
    assert f"{repository}@{digest}" in described["annotations"]["artifacthub.io/images"]
    subjects = {
        each["name"]: each["digest"]["sha256"] for each in json.loads((dist / "provenance.json").read_text())["subject"]
    }
    assert subjects == {
        repository: digest.removeprefix("sha256:"),
        **{file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (chart, bom)},
    }
    for file in (chart, bom, dist / "provenance.json"):
        signature = base64.b64decode(file.with_name(f"{file.name}.sig").read_bytes())
        key[1].verify(signature, file.read_bytes(), ec.ECDSA(SHA256()))
    for named in re.findall(r"dist/\S+", pushes):
        assert (checkout / named).exists()
    assert f"{repository}@{digest}" in pushes


@pytest.mark.skipif(helm() is None, reason="no helm on the PATH: it packages the chart")
def test_without_a_key_the_printed_commands_sign_what_they_push(release: ModuleType, checkout: Path) -> None:
    repository = "ghcr.io/owner/neuron-plugin"
    pushes = release.release(f"v{__version__}", repository=repository, key=None, revision="c0ffee", root=checkout)
    assert not list((checkout / "dist").glob("*.sig"))
    assert "--key" not in pushes
    for name in (f"neuron-plugin-{__version__}.tgz", f"neuron-plugin-{__version__}.cdx.json", "provenance.json"):
        assert f"cosign sign-blob --yes --bundle dist/{name}.sigstore.json dist/{name}" in pushes
    assert f"cosign sign --yes {repository}@{image()[1]}" in pushes
    assert f"helm push dist/neuron-plugin-{__version__}.tgz oci://ghcr.io/owner/charts" in pushes


def _files(package: Path) -> dict[str, Any]:
    with tarfile.open(package) as tar:
        opened = ((member.name, tar.extractfile(member)) for member in tar)
        return {name.partition("/")[2]: file.read() for name, file in opened if file}
