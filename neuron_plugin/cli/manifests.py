"""``neuron-plugin manifests``: what the Helm chart installs, for people without Helm.

The manifests are rendered from the chart when it changes and shipped with this package, with a name of ours where a
cluster's own goes; here those names are replaced. Nothing is asked of a cluster.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from typing import TypeAlias

from neuron_plugin import __version__
from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.output import ObjectForm, add_output_flag, document

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PARTS = {
    "device-plugin": "the device plugin alone",
    "second-scheduler": "with the extender and a second kube-scheduler",
    "default-scheduler": "with the extender, and files for the control plane's own kube-scheduler",
}

EXAMPLES = """
neuron-plugin manifests device-plugin --image registry.example.com/neuron-plugin:0.1.0 | kubectl apply -f -
neuron-plugin manifests second-scheduler --kubernetes-version v1.36.2 > neuron.yaml
neuron-plugin manifests default-scheduler --extender-address 10.96.100.45 > neuron.yaml
"""

SECRETS = """\
# Before this is applied, the namespace needs two secrets of type kubernetes.io/tls, each with ca.crt, tls.crt and
# tls.key, of one authority that signs nothing else:
#   neuron-plugin-extender-tls   for the server neuron-plugin-extender.{namespace}.svc
#   neuron-plugin-scheduler-tls  for its client, kube-scheduler
"""

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*")
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)([-+].*)?")


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "manifests",
        run,
        summary="print Kubernetes manifests, as the Helm chart renders them",
        description="Print what the Helm chart installs with its defaults, for kubectl apply.",
        examples=EXAMPLES,
    )
    told = "; ".join(f"{part}: {text}" for part, text in PARTS.items())
    parser.add_argument("part", metavar="PART", choices=tuple(PARTS), help=told)
    add_output_flag(parser, ObjectForm)
    parser.add_argument(
        "--namespace", type=_namespace, default="kube-system", metavar="NAME", help="namespace (default: kube-system)"
    )
    parser.add_argument(
        "--image",
        type=_image,
        default=f"neuron-plugin:{__version__}",
        metavar="IMAGE",
        help=f"this project's image (default: neuron-plugin:{__version__})",
    )
    parser.add_argument(
        "--kubernetes-version", type=_version, metavar="VERSION", help="the cluster's version, for second-scheduler"
    )
    parser.add_argument(
        "--extender-address",
        type=_address,
        metavar="ADDRESS",
        help="a free Service address, for default-scheduler; where it is IPv6 our pods listen on IPv6",
    )


def run(arguments: Namespace) -> int:
    """Print the manifests of one part."""
    text = resources.files("neuron_plugin.cli").joinpath(f"rendered/{arguments.part}.yaml").read_text("utf-8")
    for placeholder, value, flag in _names(arguments):
        if placeholder in text:
            if value is None:
                raise UsageError(f"{arguments.part} needs {flag}; see: neuron-plugin manifests --help")
            text = text.replace(placeholder, value)
    before = "" if arguments.part == "device-plugin" else SECRETS.format(namespace=arguments.namespace)
    if ObjectForm(arguments.output) is ObjectForm.YAML:
        print(before + text, end="")
        return Exit.FINE
    print(before, end="", file=sys.stderr)  # JSON knows no comments
    print(document(ObjectForm.JSON, _list_of(text)), end="")
    return Exit.FINE


def _list_of(text: str) -> dict[str, object]:
    import yaml

    return {"apiVersion": "v1", "kind": "List", "items": [each for each in yaml.safe_load_all(text) if each]}


def _names(arguments: Namespace) -> tuple[tuple[str, str | None, str], ...]:
    """Each name of ours in the manifests, what it is replaced by, and the flag that says so."""
    return (
        ("namespace-of-neuron-plugin", arguments.namespace, "--namespace"),
        ("image-of-neuron-plugin:its-tag", arguments.image, "--image"),
        ("version-of-kubernetes", arguments.kubernetes_version, "--kubernetes-version"),
        *_addresses(arguments.extender_address),
    )


def _addresses(address: _Address | None) -> Iterator[tuple[str, str | None, str]]:
    """A cluster whose Services have IPv6 is taken to give its pods nothing else."""
    flag = "--extender-address"
    if isinstance(address, ipaddress.IPv6Address):
        yield "https://address-of-the-extender", f"https://[{address}]", flag
        yield '"0.0.0.0"', '"::"', flag
    yield "address-of-the-extender", None if address is None else str(address), flag


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no namespace: lower case letters, digits and dashes, at most 63")
    return text


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no image, such as registry.example.com/neuron-plugin:0.1.0")
    return text


def _version(text: str) -> str:
    """The tag of kube-scheduler's image; a provider's suffix is dropped: v1.33.4-eks-1a2b3c is v1.33.4."""
    found = _VERSION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no version such as v1.36.2; `kubectl version` tells the server's"
        )
    return f"v{found[1]}"


def _address(text: str) -> _Address:
    with suppress(ValueError):
        address = ipaddress.ip_address(text)
        if "%" not in text:  # a zone's name means something on one machine only
            return address
    raise argparse.ArgumentTypeError(f"{text!r} is no IP address, such as 10.96.100.45 or fd00:10:96::45")
