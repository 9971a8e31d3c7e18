"""Helm's template language, as much of it as this chart uses: the chart is judged where no helm is installed.

It was written against the renderings of Helm 3 for every value set, which it gave byte for byte; ``test_goldens``
compares the two again wherever helm is on the PATH. A function that is not known here ends a rendering
with its name: add it to ``_FUNCTIONS``, as Go's text/template, Sprig or Helm define it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

Scope: TypeAlias = list[dict[str, Any]]
"""Variables, the innermost block's last; ``$`` is one of them."""


class TemplateFailError(Exception):
    """A template refused the values with ``fail``; the text is its own."""


class TemplateError(Exception):
    """The template has what this module does not know."""


@dataclass
class Block:
    """A part of a template: literal text, an action, or an action with what it encloses."""

    kind: str
    text: str
    """The literal text, or the action's expression."""
    body: list[Block] = field(default_factory=list)
    other: list[Block] = field(default_factory=list)
    """What ``else`` encloses."""


_ACTION = re.compile(r'\{\{(-\s)?\s*(/\*.*?\*/|(?:"(?:\\.|[^"\\])*"|`[^`]*`|[^"`])*?)\s*?(\s-)?\}\}', re.DOTALL)
_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|`[^`]*`|\$?\w*(?:\.\w+)+|\$\w*|-?\d+|\w+|:=|[.()|,=])')


def parse(text: str, defined: dict[str, list[Block]]) -> list[Block]:
    """Read a template; what it defines goes to ``defined``."""
    pieces: list[tuple[bool, str]] = []
    position, trim = 0, False
    for action in _ACTION.finditer(text):
        literal = text[position : action.start()]
        literal = literal.lstrip() if trim else literal
        pieces += [(False, literal.rstrip() if action[1] else literal), (True, action[2])]
        position, trim = action.end(), bool(action[3])
    pieces.append((False, text[position:].lstrip() if trim else text[position:]))
    return _blocks(iter(pieces), defined)[0]


def _blocks(pieces: Iterator[tuple[bool, str]], defined: dict[str, list[Block]]) -> tuple[list[Block], str]:
    """The blocks up to ``end``, ``else`` or the end of the file, and which of these it was."""
    found: list[Block] = []
    for is_action, text in pieces:
        word, _, rest = text.partition(" ")
        if not is_action:
            found.append(Block("text", text))
        elif word in ("end", "else"):
            return found, text
        elif word == "define":
            defined[json.loads(rest)] = _blocks(pieces, defined)[0]
        elif word in ("if", "with", "range"):
            found.append(_enclosing(word, rest, pieces, defined))
        elif not text.startswith("/*"):
            found.append(Block("print", text))
    return found, ""


def _enclosing(word: str, text: str, pieces: Iterator[tuple[bool, str]], defined: dict[str, list[Block]]) -> Block:
    body, ended = _blocks(pieces, defined)
    other: list[Block] = []
    if ended.startswith("else "):
        inner, _, rest = ended.removeprefix("else ").partition(" ")
        other = [_enclosing(inner, rest, pieces, defined)]
    elif ended == "else":
        other = _blocks(pieces, defined)[0]
    return Block(word, text, body, other)


class Chart:
    """A chart's templates."""

    def __init__(self, directory: Path) -> None:
        """Read every template of a chart in ``directory``."""
        self.directory = directory
        self.about = yaml.safe_load((directory / "Chart.yaml").read_text(encoding="utf-8"))
        self._base = f"{self.about['name']}/templates"
        self._defined: dict[str, list[Block]] = {}
        for file in sorted((directory / "templates").iterdir()):
            self._defined[f"{self._base}/{file.name}"] = parse(file.read_text(encoding="utf-8"), self._defined)

    @property
    def paths(self) -> list[str]:
        """The templates that print something."""
        return [path for path in self._defined if path.startswith(self._base) and not path.endswith(".tpl")]

    def context(
        self, values: dict[str, Any], release: str, namespace: str, kubernetes: str, served: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """What templates are given; ``values`` are coalesced, ``kubernetes`` is such as 1.36.2.

        ``served`` is what the cluster says that it serves, such as v1/Pod.
        """
        return {
            "Values": values,
            "Chart": {key[:1].upper() + key[1:]: value for key, value in self.about.items()},
            "Release": {"Name": release, "Namespace": namespace, "Service": "Helm"},
            "Capabilities": {
                "KubeVersion": {"Version": f"v{kubernetes}"},
                "APIVersions": {"Has": lambda kind: kind in served},
            },
            "Template": {"BasePath": self._base},
            "Files": {"Get": lambda path: (self.directory / path).read_text(encoding="utf-8")},
        }

    def include(self, name: str, dot: Any) -> str:
        """What a template prints of ``dot``; it has a name, or the path of its file.

        Raises:
            TemplateFailError: the template refused the values.
        """
        return self._print(self._defined[name], dot, [{"$": dot}])

    def _print(self, blocks: list[Block], dot: Any, scope: Scope) -> str:
        return "".join(self._print_one(block, dot, scope) for block in blocks)

    def _print_one(self, block: Block, dot: Any, scope: Scope) -> str:
        if block.kind == "text":
            return block.text
        if block.kind == "range":
            return self._print_range(block, dot, scope)
        inner = [*scope, {}]
        value, printed = self._evaluate(block.text, dot, scope if block.kind == "print" else inner)
        if block.kind == "print":
            return _shown(value) if printed else ""
        if not value:
            return self._print(block.other, dot, inner)
        return self._print(block.body, value if block.kind == "with" else dot, inner)

    def _print_range(self, block: Block, dot: Any, scope: Scope) -> str:
        names, _, text = block.text.rpartition(":=")
        ranged = self._evaluate(text, dot, scope)[0] or []
        pairs = sorted(ranged.items()) if isinstance(ranged, dict) else list(enumerate(ranged))
        variables = [name.strip() for name in names.split(",") if name.strip()]
        printed = ""
        for pair in pairs:
            told = dict(zip(variables, pair[-len(variables) :] if variables else (), strict=True))
            printed += self._print(block.body, pair[1], [*scope, told])
        return printed if pairs else self._print(block.other, dot, scope)

    def _evaluate(self, text: str, dot: Any, scope: Scope) -> tuple[Any, bool]:
        """The value of an action, and whether it is printed: an assignment is not."""
        tokens = list(_tokens(text))
        if tokens[1:2] == [":="]:
            scope[-1][tokens[0]] = self._pipeline(tokens[2:], dot, scope)
            return scope[-1][tokens[0]], False
        if tokens[1:2] == ["="]:
            owner = next(variables for variables in reversed(scope) if tokens[0] in variables)
            owner[tokens[0]] = self._pipeline(tokens[2:], dot, scope)
            return owner[tokens[0]], False
        return self._pipeline(tokens, dot, scope), True

    def _pipeline(self, tokens: list[str], dot: Any, scope: Scope) -> Any:
        """The value of commands joined by ``|``; takes from ``tokens`` up to a closing bracket."""
        value: list[Any] = []
        while tokens and tokens[0] != ")":
            if tokens[0] == "|":
                tokens.pop(0)
            value = [self._command(tokens, value, dot, scope)]
        return value[0]

    def _command(self, tokens: list[str], piped: list[Any], dot: Any, scope: Scope) -> Any:
        first = self._operand(tokens, dot, scope)
        arguments = []
        while tokens and tokens[0] not in (")", "|"):
            arguments.append(self._operand(tokens, dot, scope))
        arguments += piped
        return first(*arguments) if callable(first) else first

    def _operand(self, tokens: list[str], dot: Any, scope: Scope) -> Any:
        word = tokens.pop(0)
        if word == "(":
            value = self._pipeline(tokens, dot, scope)
            tokens.pop(0)
            return value
        if word[0] == '"':
            return json.loads(word)
        if word[0] == "`":
            return word[1:-1]
        if word.lstrip("-").isdigit():
            return int(word)
        if word[0] in "$.":
            name, *path = word.split(".")
            value = next(variables[name] for variables in reversed(scope) if name in variables) if name else dot
            return functools.reduce(lambda under, key: (under or {}).get(key), filter(None, path), value)
        return self.include if word == "include" else _function(word)


@functools.cache
def _tokens(text: str) -> tuple[str, ...]:
    tokens = tuple(match[1] for match in _TOKEN.finditer(text))
    if "".join(tokens) != re.sub(r'("(?:\\.|[^"\\])*"|`[^`]*`)|\s+', lambda match: match[1] or "", text):
        raise TemplateError(f"{text!r} was read as {tokens}: extend the tokens")
    return tokens


def _function(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise TemplateError(f"the function {name} is not known to tests/charts/templates.py: add it there")
    return _FUNCTIONS[name]


def _shown(value: Any) -> str:
    """A value as Go prints it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


class _Dumper(yaml.SafeDumper):
    """YAML as Go's libraries write it: double quotes only around what would not be read as text."""


@functools.cache
def _is_read_as_text(text: str) -> bool:
    is_text = not re.fullmatch(r"[\w.+-]*", text) or isinstance(yaml.safe_load(text), str)
    return is_text and text not in {*"yYnN"}  # booleans of YAML 1.1, which PyYAML reads as text


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _is_read_as_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _to_yaml(value: Any) -> str:
    dumped = yaml.dump(value, Dumper=_Dumper, width=10**6, allow_unicode=True, default_flow_style=False)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _to_json(value: Any) -> str:
    escaped = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return re.sub("[<>&]", lambda match: escaped[match[0]], _to_raw_json(value))


def _to_raw_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _version(text: str) -> dict[str, int]:
    numbers = (int(number) for number in text.removeprefix("v").split("-")[0].split("."))
    return dict(zip(("Major", "Minor", "Patch"), numbers, strict=True))


def _is_before(constraint: str, version: str) -> bool:
    bound = re.fullmatch(r"<(\S+)-0", constraint)
    if not bound:
        raise TemplateError(f"semverCompare {constraint!r}: only such as '<1.36.0-0' is known")
    return list(_version(version).values()) < list(_version(bound[1]).values())


def _fail(text: str) -> str:
    raise TemplateFailError(text)


def _any_of(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


def _all_of(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _set(target: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    target[key] = value
    return target


def _dig(*given: Any) -> Any:
    *keys, default, value = given
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return default if value is None else value


_GENERATED: Final = {"Cert": "GENERATED", "Key": "GENERATED"}
"""A certificate, which is a new one each time with Helm."""

_FUNCTIONS: Final[dict[str, Callable[..., Any] | bool | None]] = {
    "nil": None,
    "true": True,
    "false": False,
    "and": _all_of,
    "append": lambda values, value: [*values, value],
    "b64enc": lambda text: base64.b64encode(text.encode()).decode(),
    "compact": lambda values: [value for value in values if value],
    "concat": lambda *lists: [value for values in lists for value in values],
    "contains": lambda part, text: part in text,
    "default": lambda default, value=None: value or default,
    "dict": lambda *given: dict(zip(given[::2], given[1::2], strict=True)),
    "dig": _dig,
    "eq": lambda one, other: one == other,
    "fail": _fail,
    "fromJsonArray": json.loads,
    "fromYamlArray": yaml.safe_load,
    "genCA": lambda _name, _days: _GENERATED,
    "genSignedCert": lambda *_: _GENERATED,
    "has": lambda value, values: value in values,
    "index": lambda value, *keys: functools.reduce(lambda under, key: (under or {}).get(key), keys, value),
    "initial": lambda values: values[:-1],
    "int": lambda value: int(value or 0),
    "join": lambda between, values: between.join(map(_shown, values)),
    "last": lambda values: values[-1],
    "list": lambda *values: list(values),
    "lookup": lambda *_: {},
    "merge": lambda *parts: {key: value for part in reversed(parts) for key, value in part.items()},
    "ne": lambda one, other: one != other,
    "nindent": lambda width, text: "\n" + "\n".join(" " * width + line for line in text.split("\n")),
    "not": lambda value: not value,
    "or": _any_of,
    "print": lambda *values: "".join(map(_shown, values)),
    "printf": lambda form, *values: form % values,
    "quote": lambda value: json.dumps(_shown(value), ensure_ascii=False),
    "replace": lambda old, new, text: text.replace(old, new),
    "semver": _version,
    "semverCompare": _is_before,
    "set": _set,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "ternary": lambda yes, no, value: yes if value else no,
    "toJson": _to_json,
    "toRawJson": _to_raw_json,
    "toYaml": _to_yaml,
}
"""Functions by name; arguments as in Sprig, where the one from a pipe comes last."""

_ORDER = (
    "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap",
    "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
    "Service", "DaemonSet", "Pod", "Deployment", "Job",
)  # fmt: skip
"""The kinds of this chart in the order in which Helm installs them; others follow, by name."""


def ordered(printed: dict[str, str], *, tests: bool = True) -> str:
    """Printed templates as ``helm template`` shows them: an object each, by kind; hooks last.

    ``tests=False`` leaves the hooks of ``helm test`` out, as ``--skip-tests`` does.
    """
    objects: list[tuple[tuple[int, str], str]] = []
    hooks: list[tuple[tuple[int, str], str]] = []
    for path in sorted(printed):
        for text in re.split(r"(?:^|\s*\n)---\s*", printed[path].strip()):
            if not (found := re.search(r"^kind: (\w+)$", text, re.MULTILINE)):
                continue
            rank = _ORDER.index(found[1]) if found[1] in _ORDER else len(_ORDER)
            key = (rank, found[1] if rank == len(_ORDER) else "")
            hook = re.search(r"^    helm\.sh/hook: (\S+)$", text, re.MULTILINE)
            if tests or not hook or hook[1] != "test":
                (hooks if hook else objects).append((key, f"---\n# Source: {path}\n{text}\n"))
    by_kind = (*sorted(objects, key=lambda pair: pair[0]), *sorted(hooks, key=lambda pair: pair[0]))
    return "".join(text for _, text in by_kind)
