"""Files of a simulated machine appear whole and disappear at once."""

from __future__ import annotations

from pathlib import Path

from neuron_plugin.simulation.node_tree import File
from neuron_plugin.simulation.node_writer import remove, update_files, write_directory, write_file, write_link


def test_a_file_is_replaced_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "tree/attribute"
    write_file(tmp_path, path, File("old\n"))
    with path.open() as reader:
        write_file(tmp_path, path, File("new\n", 0o400))
        assert reader.read() == "old\n"
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o400


def test_removing_takes_files_links_and_directories_and_forgives_what_is_not_there(tmp_path: Path) -> None:
    write_file(tmp_path, tmp_path / "tree/file", File("1"))
    write_directory(tmp_path, tmp_path / "tree/directory", {"a/b": File("1")}, {})
    write_link(tmp_path, tmp_path / "tree/link", "directory")
    for name in ("link", "file", "directory", "nothing"):
        remove(tmp_path, tmp_path / "tree" / name)
    assert list((tmp_path / "tree").iterdir()) == []


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    before = {"same": File("1"), "changed": File("1"), "gone": File("1")}
    write_directory(tmp_path, directory, before, {})
    identity = (directory / "same").stat().st_ino
    update_files(tmp_path, directory, before, {"same": File("1"), "changed": File("2"), "sub/new": File("3")})
    assert {path.name: path.read_text() for path in directory.rglob("*") if path.is_file()} == {
        "same": "1",
        "changed": "2",
        "new": "3",
    }
    assert (directory / "same").stat().st_ino == identity


def test_what_a_killed_writer_left_aside_disturbs_no_writer(tmp_path: Path) -> None:
    (tmp_path / ".aside/next/neuron0").mkdir(parents=True)
    write_directory(tmp_path, tmp_path / "tree/neuron0", {"a": File("1")}, {})
    assert [path.name for path in (tmp_path / "tree/neuron0").iterdir()] == ["a"]
