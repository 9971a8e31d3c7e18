"""Make the committed gRPC stubs from the .proto texts beside this file, or check that they are up to date.

    python protos/generate.py            writes neuron_plugin/kubelet/_proto
    python protos/generate.py --check    writes nothing, fails and names each stub that differs

The texts lie under the path of the package their stubs live in, for two reasons: protoc's descriptor pool knows a file
by the path given to it, and two bare ``api.proto`` would collide; and generated imports come out absolute.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
PACKAGE = Path("neuron_plugin/kubelet/_proto")
STUBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def protoc_command(output: Path) -> list[str]:
    """The one command line that makes every stub, for any current directory."""
    scripts = Path(sysconfig.get_path("scripts"))
    texts = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    return [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"),
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        *(f"--{kind}_out={output}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")),
        *texts,
    ]


def generate(output: Path) -> None:
    """Write every stub below ``output``."""
    subprocess.run(protoc_command(output), check=True)  # noqa: S603 - our own interpreter and texts


def stubs(root: Path) -> set[Path]:
    """Stubs below ``root``, as paths relative to it."""
    return {path.relative_to(root) for kind in STUBS for path in (root / PACKAGE).rglob(kind)}


def differences(committed: Path) -> list[str]:
    """One line for each stub that is missing from ``committed``, is left over there, or has other contents."""
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        generate(fresh)
        wanted, present = stubs(fresh), stubs(committed)
        changed = [path for path in wanted & present if not filecmp.cmp(fresh / path, committed / path, shallow=False)]
    return sorted(
        [f"{path} is missing" for path in wanted - present]
        + [f"{path} has no .proto text any more" for path in present - wanted]
        + [f"{path} differs from what its .proto text gives" for path in changed]
    )


def main() -> int:
    """Run the script; the exit status is 1 if a check found a difference."""
    parser = argparse.ArgumentParser(description="Make or check the gRPC stubs.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a stub is not up to date")
    parser.add_argument("--root", type=Path, default=PROTOS.parent, help="where neuron_plugin/ lies")
    arguments = parser.parse_args()
    if not arguments.check:
        generate(arguments.root)
        return 0
    found = differences(arguments.root)
    sys.stderr.writelines(f"{line}: run `nox -s protos` and commit the result\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
