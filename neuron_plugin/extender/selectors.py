"""Field and label selectors of the monitor API: equality on a node's or pod's name, namespace and node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.objects import NAMESPACE_LABEL, NODE_LABEL

_Read = Callable[[NodeRecord | PodRecord], str]


class SelectorError(ValueError):
    """A selector that is not understood; the text names it and what is."""


@dataclass(frozen=True, slots=True)
class _Term:
    read: _Read
    value: str
    equal: bool


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms that must all hold; none select everything."""

    terms: tuple[_Term, ...] = ()

    def matches(self, record: NodeRecord | PodRecord | None) -> bool:
        """Whether a record is there and selected."""
        return record is not None and all((term.read(record) == term.value) is term.equal for term in self.terms)


def _name(record: NodeRecord | PodRecord) -> str:
    return record.name if isinstance(record, NodeRecord) else record.pod.name


def _namespace(record: NodeRecord | PodRecord) -> str:
    return "" if isinstance(record, NodeRecord) else record.pod.namespace


def _node(record: NodeRecord | PodRecord) -> str:
    return record.name if isinstance(record, NodeRecord) else record.node


_FIELDS: Mapping[str, _Read] = {"metadata.name": _name, "metadata.namespace": _namespace, "spec.nodeName": _node}
_LABELS: Mapping[str, _Read] = {NODE_LABEL: _node, NAMESPACE_LABEL: _namespace}


def parse_selector(field_selector: str, label_selector: str) -> Selector:
    """Read both query parameters; terms are ``key=value``, ``key==value`` or ``key!=value``, comma separated.

    Raises:
        SelectorError: a term of another form, or a key that is not selectable.
    """
    return Selector((*_terms(field_selector, _FIELDS), *_terms(label_selector, _LABELS)))


def _terms(text: str, known: Mapping[str, _Read]) -> list[_Term]:
    return [_term(part.strip(), known) for part in text.split(",") if part.strip()]


def _term(text: str, known: Mapping[str, _Read]) -> _Term:
    key, operator, value = text.partition("=")
    equal = not key.endswith("!")
    key = key.removesuffix("!").strip()
    if not operator or key not in known:
        raise SelectorError(f"selector {text[:100]!r}: expected key=value or key!=value with {' or '.join(known)}")
    return _Term(known[key], value.removeprefix("=").strip(), equal)
