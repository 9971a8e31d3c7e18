"""``neuron-plugin completion``: completions of a shell when Tab is pressed.

One function serves bash, zsh, fish and kubectl, in the protocol of cobra, kubectl's library. It prints a line for each
completion: the word, a tab and a description. The last line is a number that says whether to complete files. Names of
nodes, pods and namespaces come from the cluster that the typed flags select. The scripts pass words to this function
and show its answer.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec

from neuron_plugin.cli.command import CommandError, Exit, Parser

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that completes commands, flags, their choices, paths, instance types, and the names of
nodes, pods, namespaces and contexts in your shell. For 'kubectl neuron' none is needed: kubectl asks the
program kubectl_complete-neuron, which is installed beside this one."""

EXAMPLES = """
source <(neuron-plugin completion bash)
neuron-plugin completion bash > ~/.local/share/bash-completion/completions/neuron-plugin
"""

_FILES, _NOTHING_ELSE, _DIRECTORIES = 0, 4, 16
"""Values of cobra's ShellCompDirective: whether the shell completes files or directories."""
_DIRECTIVES = {"DIR": _DIRECTORIES, "FILE": _FILES, "PATH": _FILES}
_ANSWER_SECONDS = 2.0
"""The deadline for the API server, short because a user has pressed Tab."""

_BASH = r"""
_neuron_plugin() {
    local line directive="" current="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            :*) directive="${line#:}" ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    case "$directive" in
        0) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
        16) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    esac
}
complete -F _neuron_plugin neuron-plugin
"""
_ZSH = r"""#compdef neuron-plugin
_neuron-plugin() {
    local line directive
    local -a offered
    while IFS= read -r line; do
        case "$line" in
            :*) directive="${line#:}" ;;
            *) offered+=("${${line//:/\\:}/$'\t'/:}") ;;
        esac
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    _describe neuron-plugin offered
    case "$directive" in
        0) _files ;;
        16) _files -/ ;;
    esac
}
if [ "$funcstack[1]" = "_neuron-plugin" ]; then
    _neuron-plugin "$@"
else
    compdef _neuron-plugin neuron-plugin
fi
"""
_FISH = r"""
function __neuron_plugin_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] 2>/dev/null)
        switch $line
            case ':0'
                __fish_complete_path (commandline -ct)
            case ':16'
                __fish_complete_directories (commandline -ct)
            case ':*'
            case '*'
                echo $line
        end
    end
end
complete -c neuron-plugin -f -a '(__neuron_plugin_complete)'
"""


def add_flags(parser: Parser) -> None:
    """Add the argument for the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(arguments: Namespace) -> None:
    """Print the script."""
    print({"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[arguments.shell].lstrip("\n"), end="")


def complete(words: Sequence[str]) -> int:
    """Print the completions of the last word, as cobra does."""
    offered, directive = _completions(words or [""])
    for name, meaning in offered:
        print(f"{name}\t{meaning}" if meaning else name)
    print(f":{directive}")
    return Exit.SUCCESS


def _completions(words: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """The completions of the last word with their descriptions, and cobra's directive."""
    from neuron_plugin.cli.main import build_parser

    *typed, current = words
    parser: argparse.ArgumentParser = build_parser(next((word for word in typed if not word.startswith("-")), ""))
    flag: argparse.Action | None = None
    values, place = dict[str, object](), 0
    for word in typed:
        if word == "=":  # bash splits --output=json into three words
            continue
        if flag:
            values[flag.dest], flag = _given(flag, word, values), None
            continue
        name, _, value = word.partition("=")
        if word.startswith("-") and len(word) > 1:
            known = parser._option_string_actions.get(name)  # noqa: SLF001 - argparse has no public access to its flags
            if known and value:
                values[known.dest] = _given(known, value, values)
            elif known and known.nargs != 0:
                flag = known
            elif known:
                values[known.dest] = known.const
            continue
        action = _positional(parser, place)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            if word not in action.choices:
                return [], _NOTHING_ELSE
            parser, place = action.choices[word], 0
        else:
            place += 1
    current, before = "" if current == "=" else current, ""
    if not flag and current.startswith("-"):
        name, given, value = current.partition("=")
        flag = parser._option_string_actions.get(name) if given else None  # noqa: SLF001 - as above
        if not flag:
            options = parser._option_string_actions.items()  # noqa: SLF001 - as above
            return _beginning(current, ((text, _meaning(option)) for text, option in options)), _NOTHING_ELSE
        current, before = value, f"{name}="
    action = flag or _positional(parser, place)
    if action is None:
        return [], _NOTHING_ELSE
    offered = _beginning(current, _values(action, Namespace(**values), current))
    return [(before + name, meaning) for name, meaning in offered], _DIRECTIVES.get(str(action.metavar), _NOTHING_ELSE)


def _given(flag: argparse.Action, word: str, values: Mapping[str, object]) -> object:
    """A word as a flag's value, added to earlier values; the word itself if it is no valid value."""
    try:
        value = flag.type(word) if callable(flag.type) else word
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        value = word
    if not isinstance(flag, argparse._AppendAction):  # noqa: SLF001 - argparse has no public name
        return value
    before = values.get(flag.dest)
    return [*(before if isinstance(before, list) else ()), value]


def _meaning(option: argparse.Action) -> str:
    return "" if option.help in {None, argparse.SUPPRESS} else str(option.help)


def _positional(parser: argparse.ArgumentParser, place: int) -> argparse.Action | None:
    """The positional argument at a place; one that takes several words takes all following ones."""
    actions = parser._get_positional_actions()  # noqa: SLF001 - argparse has no public access
    for number, action in enumerate(actions):
        if number == place or action.nargs in {"*", "+"}:
            return action
    return None


def _beginning(current: str, offered: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    lines = ((name, " ".join(meaning.replace("%%", "%").split())) for name, meaning in offered)
    return [(name, meaning) for name, meaning in lines if name.startswith(current)]


def _values(action: argparse.Action, typed: Namespace, current: str) -> Iterator[tuple[str, str]]:
    """The possible values of an argument, each with its description."""
    if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public access
        yield from ((listed.dest, listed.help or "") for listed in action._choices_actions)  # noqa: SLF001 - as above
    elif action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    else:
        kinds = str(action.metavar).rpartition("]")[2].split("|")  # a pod is [NAMESPACE/]POD
        yield from ((name, "") for kind in kinds for name in _names(kind, typed, current))


def _names(kind: str, typed: Namespace, current: str) -> list[str]:
    """The existing names of a kind, by an argument's metavar."""
    if kind == "TYPE":
        from neuron_plugin.topology import catalogue

        return sorted(catalogue())
    if kind == "CHECK":
        from neuron_plugin.inspection import CHECKS

        return [check.name for check in CHECKS]
    return _cluster_names(kind, typed, current) if kind in {"NODE", "POD", "NAMESPACE", "CONTEXT"} else []


def _cluster_names(kind: str, typed: Namespace, current: str) -> list[str]:
    """The names in the cluster; empty, without an error, if the cluster does not answer."""
    from neuron_plugin.cli.cluster import ask_cluster, kubeconfig_of, namespace_from
    from neuron_plugin.cluster import ApiRequest, ApiServer
    from neuron_plugin.cluster.credentials import CredentialsError, contexts_of
    from neuron_plugin.settings import SettingsError

    usual = dict.fromkeys(("kubeconfig", "context", "namespace"), "")
    arguments = Namespace(**{**usual, **vars(typed)})
    namespace, slash, _ = current.partition("/")
    try:
        if kind == "CONTEXT":
            return contexts_of(kubeconfig_of(arguments.kubeconfig))
        paths = {"NODE": "/api/v1/nodes", "NAMESPACE": "/api/v1/namespaces"}
        if kind == "POD":
            namespace = namespace if slash else namespace_from(arguments)
            paths[kind] = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"

        async def listed(api: ApiServer) -> list[str]:
            answer = await api.request(ApiRequest("GET", paths[kind]), timeout_seconds=_ANSWER_SECONDS)
            return [found["metadata"]["name"] for found in msgspec.json.decode(answer.body)["items"]]

        names = ask_cluster(arguments, listed)
    except (CommandError, SettingsError, CredentialsError, OSError, msgspec.MsgspecError, LookupError, TypeError):
        return []
    return [f"{namespace}/{name}" for name in names] if kind == "POD" and slash else names
