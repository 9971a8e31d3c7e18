"""``neuron-plugin manifests``: the manifests of the Helm chart, for use without Helm.

The manifests are rendered when the chart changes and shipped with this package, with placeholders for values of a
cluster. This command replaces the placeholders; it asks no cluster.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from importlib import resources

from neuron_plugin import __version__
from neuron_plugin.cli.command import OBJECTS, Form, UsageError, add_output_flag, document, matching

PARTS = {
    "device-plugin": "the device plugin alone",
    "gates": "with the controller that places pods before the cluster's scheduler sees them (Kubernetes 1.36)",
    "second-scheduler": "with the extender and a second kube-scheduler",
    "default-scheduler": "with the extender, and files for the control plane's own kube-scheduler",
}

DESCRIPTION = "Print what the Helm chart installs with its defaults, for kubectl apply."

EXAMPLES = """
neuron-plugin manifests device-plugin --image registry.example.com/neuron-plugin:0.1.0 | kubectl apply -f -
neuron-plugin manifests gates --image registry.example.com/neuron-plugin:0.1.0 > neuron.yaml
neuron-plugin manifests second-scheduler --kubernetes-version v1.36.2 > neuron.yaml
neuron-plugin manifests default-scheduler --extender-address 10.96.100.45 > neuron.yaml
"""

SECRETS = {
    "device-plugin": "",
    "gates": """\
# Before this is applied, the namespace needs a secret of type kubernetes.io/tls, with ca.crt, tls.crt and tls.key:
#   neuron-plugin-extender-tls   for the server neuron-plugin-extender.{namespace}.svc
""",
}
"""Comments about prerequisites of a part; the default is ``_TWO_SECRETS``."""
_TWO_SECRETS = """\
# Before this is applied, the namespace needs two secrets of type kubernetes.io/tls, each with ca.crt, tls.crt and
# tls.key, of one authority that signs nothing else:
#   neuron-plugin-extender-tls   for the server neuron-plugin-extender.{namespace}.svc
#   neuron-plugin-scheduler-tls  for its client, kube-scheduler
"""

_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_IMAGE = r"[A-Za-z0-9][\w./:@-]*"
_VERSION = r"v?(\d+\.\d+)(\.\d+)?([-+].*)?"
_FIRST_PATCH = ".0"
"""The patch of a minor version such as 1.36: every minor version has it."""


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for the part and for the placeholders."""
    parts = "; ".join(f"{name}: {text}" for name, text in PARTS.items())
    parser.add_argument("part", metavar="PART", choices=tuple(PARTS), help=parts)
    add_output_flag(parser, OBJECTS)
    image = f"neuron-plugin:{__version__}"
    for flag, metavar, default, pattern, meaning, expected in (
        ("--namespace", "NAME", "kube-system", _NAMESPACE, "namespace", "namespace: lower case, digits and dashes"),
        ("--image", "IMAGE", image, _IMAGE, "this project's image", f"image, such as registry.example.com/{image}"),
        (
            "--kubernetes-version",
            "VERSION",
            None,
            _VERSION,
            "the cluster's, for second-scheduler",
            "version: 1.36 or v1.36.2",
        ),
    ):
        text = f"{meaning} (default: {default})" if default else meaning
        parser.add_argument(flag, type=matching(pattern, expected), default=default, metavar=metavar, help=text)
    address = "a free Service address, for default-scheduler; where it is IPv6 our pods listen on IPv6"
    parser.add_argument("--extender-address", type=_address, metavar="ADDRESS", help=address)


def run(arguments: Namespace) -> None:
    """Print the manifests of one part."""
    text = resources.files("neuron_plugin.cli").joinpath(f"rendered/{arguments.part}.yaml").read_text("utf-8")
    address, version = arguments.extender_address, arguments.kubernetes_version
    if version and (read := re.fullmatch(_VERSION, version)):
        # The tag of kube-scheduler's image: a provider's suffix is removed, v1.33.4-eks-1a2b3c becomes v1.33.4.
        version = f"v{read[1]}{read[2] or _FIRST_PATCH}"
    if isinstance(address, ipaddress.IPv6Address):  # if Services have IPv6, assume that the cluster has nothing else
        text = text.replace('"0.0.0.0"', '"::"').replace("https://address-of-the-extender", f"https://[{address}]")
    for placeholder, value, flag in (
        ("namespace-of-neuron-plugin", arguments.namespace, "--namespace"),
        ("image-of-neuron-plugin:its-tag", arguments.image, "--image"),
        ("version-of-kubernetes", version, "--kubernetes-version"),
        ("address-of-the-extender", address, "--extender-address"),
    ):
        if placeholder in text:
            if value is None:
                raise UsageError(f"{arguments.part} needs {flag}; see: neuron-plugin manifests --help")
            text = text.replace(placeholder, str(value))
    before = SECRETS.get(arguments.part, _TWO_SECRETS).format(namespace=arguments.namespace)
    if arguments.output == Form.YAML:
        print(before + text, end="")
        return
    import yaml

    print(before, end="", file=sys.stderr)  # JSON has no comments
    items = [document for document in yaml.safe_load_all(text) if document]
    print(document(Form.JSON, {"apiVersion": "v1", "kind": "List", "items": items}), end="")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    with suppress(ValueError):
        if "%" not in text:  # a zone's name is only valid on one machine
            return ipaddress.ip_address(text)
    raise ArgumentTypeError(f"{text!r} is no IP address, such as 10.96.100.45 or fd00:10:96::45")
