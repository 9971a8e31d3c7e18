"""Settings of a daemon from flags, environment and file.

A settings class is a frozen msgspec Struct. Its field ``kubelet_dir`` is the flag ``--kubelet-dir``, the environment
variable ``NEURON_PLUGIN_KUBELET_DIR`` and the key ``kubelet-dir`` of the YAML file: one name to learn. A flag overrides
the environment, the environment the file, the file the default.

A field that is a Struct itself is a section of the file, and of the file only: omitted keys keep their defaults.
"""

from __future__ import annotations

import argparse
import enum
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta

ENVIRONMENT_PREFIX = "NEURON_PLUGIN_"
USUAL_FILE = Path("/etc/neuron-plugin/config.yaml")
"""The path where the chart mounts a daemon's configuration."""

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


class SettingsError(ValueError):
    """A setting that cannot be used; the text names its place, its value and the expected value."""


def add_flags(parser: argparse.ArgumentParser, settings: type[msgspec.Struct]) -> None:
    """Add a flag for every field to ``parser``; an omitted flag is None."""
    for field in _flat_fields(settings):
        flag, kind = f"--{field.encode_name}", _kind_of(field)
        text = f"{description_of(field)} (default: {as_text(field.default) or 'none'})".replace("%", "%%")
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif isinstance(kind, enum.EnumType):
            names = [str(member.value) for member in typing.cast("type[enum.StrEnum]", kind)]
            parser.add_argument(flag, choices=names, help=text)
        else:
            words = {Path: "PATH", float: "SECONDS", int: "NUMBER"}
            metavar = "LIST" if typing.get_origin(kind) is tuple else words.get(kind, "TEXT")
            parser.add_argument(flag, metavar=metavar, help=text)


def load(
    settings: type[_Settings], flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> _Settings:
    """The effective settings.

    ``flags`` maps field names to values of the command line, None for an omitted flag; other names are ignored. An
    empty environment variable counts as unset: manifests often have them.

    Raises:
        SettingsError: an unknown key, a value of the wrong type or out of range, or an unreadable file.
    """
    values: dict[str, Any] = {}
    if file:
        content, fields = (
            read_yaml(file) or {},
            {field.encode_name: field for field in msgspec.structs.fields(settings)},
        )
        if not isinstance(content, dict):
            kind = type(content).__name__
            raise SettingsError(f"{file} holds {kind}, expected settings by name, such as 'cdi: true'")
        if unknown := sorted(str(key) for key in content if key not in fields):
            raise SettingsError(f"{file} has the unknown key {unknown[0]!r}; known keys: {', '.join(sorted(fields))}")
        values |= {key: _checked(fields[key], value, f"{key} in {file}", strict=True) for key, value in content.items()}
    for field in _flat_fields(settings):
        variable = ENVIRONMENT_PREFIX + field.name.upper()
        if environment.get(variable):
            values[field.encode_name] = _checked(field, environment[variable], variable, strict=False)
        if flags.get(field.name) is not None:
            values[field.encode_name] = _checked(field, flags[field.name], f"--{field.encode_name}", strict=False)
    return msgspec.convert(values, settings, dec_hook=_decode)


def as_yaml(settings: msgspec.Struct) -> str:
    """The settings as a configuration file with every key."""
    return yaml.safe_dump(msgspec.to_builtins(settings, enc_hook=str), sort_keys=False)


def as_text(value: object) -> str:
    """A setting as its flag takes it; of a section only values that differ from the default."""
    if value is None:
        return ""
    if isinstance(value, msgspec.Struct):
        given, default = (msgspec.to_builtins(record, enc_hook=str) for record in (value, type(value)()))
        return msgspec.json.encode({key: setting for key, setting in given.items() if setting != default[key]}).decode()
    if isinstance(value, tuple):
        return ",".join(as_text(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_yaml(file: Path) -> object:
    """The one document of a YAML file.

    Raises:
        SettingsError: the file cannot be read or is no YAML.
    """
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read {file}: {' '.join(str(error).split())}") from None


def _flat_fields(settings: type[msgspec.Struct]) -> list[msgspec.structs.FieldInfo]:
    """The fields with a flag and a variable: all except sections."""
    return [field for field in msgspec.structs.fields(settings) if not _is_section(field)]


def _is_section(field: msgspec.structs.FieldInfo) -> bool:
    kind: object = _kind_of(field)
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _merged(default: object, value: object) -> object:
    if not (isinstance(default, dict) and isinstance(value, dict)):
        return value
    return default | {key: _merged(default.get(key), item) for key, item in value.items()}


def _checked(field: msgspec.structs.FieldInfo, value: object, source: str, *, strict: bool) -> object:
    """The value in plain types, if valid; ``strict`` accepts no text for a number or a list."""
    if not strict and isinstance(value, str) and typing.get_origin(_kind_of(field)) is tuple:
        value = [item.strip() for item in value.split(",")]
    complete = value
    if _is_section(field):  # omitted keys keep their defaults
        complete = _merged(msgspec.to_builtins(field.default, enc_hook=str), {} if value is None else value)
    try:
        converted = msgspec.convert(complete, field.type, strict=strict, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source} is {value!r}: {_explained(error, field.type)}") from None
    return msgspec.to_builtins(converted, enc_hook=str)


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value:  # pathlib reads an empty path as the working directory
        return Path(value)
    raise TypeError(f"expected a {kind.__name__}")


def _kind_of(field: msgspec.structs.FieldInfo) -> Any:
    """The field's type without its description and without ``None``."""
    return _plain(field.type)


def _plain(kind: Any) -> Any:
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    return members[0] if type(None) in typing.get_args(kind) else kind


def description_of(field: msgspec.structs.FieldInfo) -> str:
    """The description of a setting, as in its help."""
    notes = [note.description for note in typing.get_args(field.type)[1:] if isinstance(note, Meta)]
    return notes[0] or "" if notes else ""


def _explained(error: msgspec.ValidationError, kind: Any) -> str:
    """The error text of msgspec for a value of ``kind``, with bounds, choices or known keys added."""
    text, at, path = str(error).partition(" - at `$")
    for step in path.rstrip("`").split("."):
        key, bracket, _ = step.partition("[")
        plain = _plain(kind)
        if key and isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            kind = {field.encode_name: field.type for field in msgspec.structs.fields(plain)}.get(key)
        if bracket:
            kind = next(iter(typing.get_args(_plain(kind))), None)
    plain = _plain(kind)
    item = typing.get_args(plain)[0] if typing.get_origin(plain) is tuple else plain
    if plain in {int, float}:
        text = f"expected {'a whole number' if plain is int else 'a number'}{_bounds(kind)}"
    elif isinstance(item, enum.EnumType):
        text += f"; choose among {', '.join(typing.cast('type[enum.StrEnum]', item))}"
    elif isinstance(plain, type) and issubclass(plain, msgspec.Struct) and "unknown field" in text:
        text += f"; known keys: {', '.join(sorted(field.encode_name for field in msgspec.structs.fields(plain)))}"
    return f"{text}{at}{path}" if "." in path else text  # an item of a list is named by its value


def _bounds(kind: Any) -> str:
    """The bounds of a number, in words."""
    meta = next((note for note in typing.get_args(kind)[1:] if isinstance(note, Meta)), Meta())
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    bounds = {" of at least": meta.ge, " above": meta.gt, " of at most": meta.le}
    return ",".join(f"{words} {bound}" for words, bound in bounds.items() if bound is not None)


def configuration_file(flags: Mapping[str, object]) -> Path | None:
    """The daemon's configuration file: the file named by ``config``, or the one in the usual place on this machine.

    Raises:
        SettingsError: the named file does not exist.
    """
    if named := flags.get("config"):
        if not os.path.lexists(str(named)):
            raise SettingsError(f"--config {named} is not there: expected the YAML file of 'neuron-plugin run'")
        return Path(str(named))
    return USUAL_FILE if not flags.get("root") and os.path.lexists(USUAL_FILE) else None
