"""Files of a simulated machine, changed so that nobody ever reads one half written.

A file is made aside and renamed into place, a device's directory is made whole before it appears and renamed away
before it is emptied. What is aside lies in the machine's directory (one file system), outside sys/ and dev/.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from neuron_plugin.simulation.node_tree import File

_ASIDE = ".aside"
_LOCK = ".lock"


@contextmanager
def exclusively(root: Path) -> Iterator[None]:
    """Hold the machine in ``root`` against other processes that change it."""
    with (root / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file; held for as long as a tree takes to write
        yield


def write_file(root: Path, path: Path, file: File) -> None:
    """Put ``file`` at ``path``, whole and with its mode, whatever was there."""
    aside = _aside(root)
    _create(aside, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.replace(path)


def write_char_node(root: Path, path: Path, major: int, minor: int) -> None:
    """Put a character device at ``path``. Takes root (CAP_MKNOD)."""
    aside = _aside(root)
    os.mknod(aside, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    aside.chmod(0o666)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.replace(path)


def write_directory(root: Path, path: Path, files: Mapping[str, File], links: Mapping[str, str]) -> None:
    """Make a directory of ``files`` and symbolic ``links`` appear at ``path`` at once, whatever was there."""
    remove(root, path)  # a writer that was killed may have got this far
    aside = _aside(root)
    aside.mkdir()
    for parent in sorted({(aside / name).parent for name in files}):
        parent.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        _create(aside / name, file)
    for name, target in links.items():
        (aside / name).symlink_to(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.rename(path)


def write_link(root: Path, path: Path, target: str) -> None:
    """Put a symbolic link at ``path``."""
    aside = _aside(root)
    aside.symlink_to(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.replace(path)


def remove(root: Path, path: Path) -> None:
    """Make ``path``, a file or a directory, disappear at once. What is not there is fine."""
    aside = _aside(root)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()


def update_files(root: Path, directory: Path, before: Mapping[str, File], after: Mapping[str, File]) -> None:
    """Change what differs between two tables of the files in ``directory``."""
    for name in before.keys() - after.keys():
        remove(root, directory / name)
    for name, file in after.items():
        if before.get(name) != file:
            write_file(root, directory / name, file)


def _aside(root: Path) -> Path:
    """A free place; only whoever holds the machine is here."""
    directory = root / _ASIDE
    directory.mkdir(exist_ok=True)
    path = directory / "next"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # left behind by one who was killed
    else:
        path.unlink(missing_ok=True)
    return path


def _create(path: Path, file: File) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, file.text.encode())
        os.fchmod(descriptor, file.mode)  # the umask has no say in sysfs
    finally:
        os.close(descriptor)
