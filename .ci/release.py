r"""Make everything that a release consists of, as files in dist/, from an image that was built but not pushed.

    docker buildx build --platform linux/amd64,linux/arm64 --build-arg REVISION="$(git rev-parse HEAD)" \
        --output type=oci,dest=dist/image.tar .
    nox -s sbom
    python .ci/release.py v0.1.0 --repository registry.example.com/neuron-plugin --key cosign.pem

With --keyless nothing is signed here: the printed commands do it, by the identity that cosign finds (a CI's token).
Without buildx: ``podman build --manifest`` and ``podman manifest push --all NAME oci-archive:dist/image.tar``.

No registry is asked: the image's digest stands in its OCI layout, and the chart is packaged with it. What is printed at
the end pushes the files. Signatures are those of ``cosign sign-blob --key``: ECDSA over SHA-256, DER, in base64.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

ROOT = Path(__file__).resolve().parents[1]
CHART = "charts/neuron-plugin"
BUILD_TYPE = "https://slsa.dev/container-based-build/v0.1"


class ReleaseError(Exception):
    """The release cannot be made; the text says what to change."""


class Layout:
    """An image as an OCI layout in a tar file; every blob that is read is held against its digest."""

    def __init__(self, file: Path) -> None:
        """``file`` is what ``docker buildx build --output type=oci``, podman, buildah or ``skopeo copy`` wrote."""
        self._path = file
        described = json.loads(self._read("index.json"))["manifests"]
        if len(described) != 1:
            raise ReleaseError(f"{file} holds {len(described)} images, expected one: build it with one --tag")
        self.digest = str(described[0]["digest"])

    def platforms(self) -> dict[str, str]:
        """The digest of each platform's manifest by its name, such as ``linux/arm64``."""
        top = json.loads(self.blob(self.digest))
        if "manifests" not in top:
            config = json.loads(self.blob(top["config"]["digest"]))
            return {f"{config['os']}/{config['architecture']}": self.digest}
        found = ((each["platform"], each["digest"]) for each in top["manifests"])
        named = {f"{platform['os']}/{platform['architecture']}": digest for platform, digest in found}
        return {name: digest for name, digest in named.items() if "unknown" not in name}  # buildx's attestations

    def blob(self, digest: str) -> bytes:
        """The content behind a digest."""
        content = self._read(f"blobs/{digest.replace(':', '/')}")
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise ReleaseError(f"the blob {digest} has another content: the layout is damaged, build the image again")
        return content

    def file(self, manifest: str, path: str) -> str:
        """A file of the image's last layer that has it; empty without one."""
        for layer in reversed(json.loads(self.blob(manifest))["layers"]):
            content = self.blob(layer["digest"])
            content = gzip.decompress(content) if layer["mediaType"].endswith("gzip") else content
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                for member in tar:
                    if member.name.removeprefix("./") == path and (opened := tar.extractfile(member)):
                        return opened.read().decode()
        return ""

    def _read(self, name: str) -> bytes:
        with tarfile.open(self._path) as tar:
            opened = tar.extractfile(name) if name in tar.getnames() else None
            if opened is None:
                raise ReleaseError(f"{self._path} has no {name}: expected an OCI layout (--output type=oci)")
            return opened.read()


def notes(changelog: str, version: str) -> str:
    """What the changelog says about a version."""
    found = re.search(rf"^## {re.escape(version)}\b.*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found:
        raise ReleaseError(f"CHANGELOG.md has no part '## {version}': rename 'Unreleased', with the date")
    return found[1].strip() + "\n"


def check_version(tag: str, root: Path = ROOT) -> str:
    """The version of a tag, which package, chart and image have, too."""
    version = tag.removeprefix("v")
    chart = yaml.safe_load((root / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    package = re.search(r'__version__ = "(.*)"', (root / "neuron_plugin/__init__.py").read_text(encoding="utf-8"))
    label = re.search(r'image\.version="(.*)"', (root / "Dockerfile").read_text(encoding="utf-8"))
    said = {
        "neuron_plugin/__init__.py": package and package[1],
        "Chart.yaml, version": chart["version"],
        "Chart.yaml, appVersion": chart["appVersion"],
        "Dockerfile": label and label[1],
    }
    for place, found in said.items():
        if found != version:
            raise ReleaseError(f"{place} says {found}, and the tag is {tag}: they have to agree")
    return version


def debian_packages(status: str) -> Iterator[dict[str, str]]:
    """The packages of a base image as CycloneDX components, from its /var/lib/dpkg/status."""
    for stanza in status.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if re.match(r"\S+: ", line))
        if fields.get("Status", "").endswith(" installed"):
            name, version, architecture = (fields[key] for key in ("Package", "Version", "Architecture"))
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}"
            yield {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def bill_of_materials(python: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """The SBOM of the Python environment, with the packages of the base image of every platform."""
    components = {each["bom-ref"]: each for each in python.get("components", [])}
    for platform, manifest in layout.platforms().items():
        status = layout.file(manifest, "var/lib/dpkg/status")
        if not status:
            raise ReleaseError(f"the image for {platform} has no /var/lib/dpkg/status: is its base still Debian?")
        components |= {each["bom-ref"]: each for each in debian_packages(status)}
    return {**python, "components": list(components.values())}


def package_chart(directory: Path, *, repository: str, digest: str, changes: str, root: Path = ROOT) -> Path:
    """The chart as a package that installs exactly this image."""
    copy = shutil.copytree(root / CHART, directory / "chart/neuron-plugin", dirs_exist_ok=True)
    values = (copy / "values.yaml").read_text(encoding="utf-8")
    for key, value in (("repository: neuron-plugin", f"repository: {repository}"), ('digest: ""', f"digest: {digest}")):
        if values.count(f"\n  {key}\n") != 1:
            raise ReleaseError(f"values.yaml has no single line {key!r} below image")
        values = values.replace(f"\n  {key}\n", f"\n  {value}\n")
    (copy / "values.yaml").write_text(values, encoding="utf-8")
    chart = yaml.safe_load((copy / "Chart.yaml").read_text(encoding="utf-8"))
    entries = [" ".join(entry.split()) for entry in re.findall(r"^- (.+(?:\n  .+)*)", changes, re.MULTILINE)]
    chart["annotations"] |= {
        "artifacthub.io/images": yaml.safe_dump([{"name": "neuron-plugin", "image": f"{repository}@{digest}"}]),
        "artifacthub.io/changes": yaml.safe_dump(entries),
    }
    (copy / "Chart.yaml").write_text(yaml.safe_dump(chart, sort_keys=False), encoding="utf-8")
    command = [shutil.which("helm") or "helm", "package", str(copy), "--destination", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own arguments
    shutil.rmtree(directory / "chart")
    return directory / f"neuron-plugin-{chart['version']}.tgz"


def provenance(files: list[Path], *, image: str, digest: str, revision: str) -> dict[str, Any]:
    """An in-toto statement: what was made, and from which commit."""
    subjects = [{"name": image, "digest": {"sha256": digest.removeprefix("sha256:")}}]
    subjects += [{"name": file.name, "digest": {"sha256": _sha256(file)}} for file in files]
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {"revision": revision},
        "resolvedDependencies": [{"uri": "git", "digest": {"gitCommit": revision}}],
    }
    predicate = {"buildDefinition": definition, "runDetails": {"builder": {"id": "neuron-plugin/.ci/release.py"}}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }


def sign(file: Path, key: Path) -> Path:
    """A signature of the file beside it, that ``cosign verify-blob --key`` accepts."""
    private = load_pem_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ReleaseError(f"{key} is no key for ECDSA: openssl ecparam -name prime256v1 -genkey -noout -out {key}")
    signature = file.with_name(f"{file.name}.sig")
    signature.write_bytes(base64.b64encode(private.sign(file.read_bytes(), ec.ECDSA(SHA256()))))
    return signature


def release(tag: str, *, repository: str, key: Path | None, revision: str, root: Path = ROOT) -> str:
    """Write chart, SBOM, notes and provenance to dist/, signed if there is a key; gives the commands that push them.

    Without a key the commands sign, too: they write a bundle beside each file.
    """
    dist = root / "dist"
    version = check_version(tag, root)
    said = notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    layout = Layout(dist / "image.tar")
    python = json.loads((dist / "sbom.cdx.json").read_text(encoding="utf-8"))
    bom = dist / f"neuron-plugin-{version}.cdx.json"
    bom.write_text(json.dumps(bill_of_materials(python, layout), indent=1), encoding="utf-8")
    chart = package_chart(dist, repository=repository, digest=layout.digest, changes=said, root=root)
    (dist / "notes.md").write_text(said, encoding="utf-8")
    statement = dist / "provenance.json"
    made = provenance([chart, bom], image=repository, digest=layout.digest, revision=revision)
    statement.write_text(json.dumps(made, indent=1), encoding="utf-8")
    image, registry = f"{repository}@{layout.digest}", repository.rpartition("/")[0]
    signing = f"--key {key}" if key else "--yes"
    commands = [
        f"skopeo copy --all --preserve-digests oci-archive:dist/image.tar docker://{repository}:{version}",
        f"cosign sign {signing} {image}",
        f"cosign attest {signing} --type cyclonedx --predicate dist/{bom.name} {image}",
        f"helm push dist/{chart.name} oci://{registry}/charts",
    ]
    for file in (chart, bom, statement):
        if key:
            sign(file, key)
        else:
            commands.append(f"cosign sign-blob --yes --bundle dist/{file.name}.sigstore.json dist/{file.name}")
    return "\n".join(commands)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> int:
    """Make the release of a tag."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tag", help="such as v0.1.0")
    parser.add_argument(
        "--repository", required=True, help="where the image will be: registry.example.com/neuron-plugin"
    )
    signing = parser.add_mutually_exclusive_group(required=True)
    signing.add_argument("--key", type=Path, help="private key for ECDSA in PEM")
    signing.add_argument("--keyless", action="store_true", help="leave the signing to the printed commands")
    given = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607 - the maintainer's git
    try:
        print(release(given.tag, repository=given.repository, key=given.key, revision=git.stdout.strip()))  # noqa: T201 - a script
    except (ReleaseError, OSError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)  # noqa: T201 - a script
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
