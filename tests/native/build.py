"""Builds the kernels' self-test programs (``csrc/test``) for any level, here or crosswise.

The flags are read from CMakeLists.txt, so that what is tested is what is shipped. Objects and
programs are cached in ``build/selftests`` under a hash of all that went into them.

    python tests/native/build.py avx2 linear_test [plain|sanitized|threads]

prints the path of one program.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
CACHE = ROOT / "build" / "selftests"

X86_LEVELS = ("scalar", "avx2", "avx512")
ARM_LEVELS = ("neon", "dotprod", "i8mm")

VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "sanitized": (
        *("-g1", "-O1", "-fno-omit-frame-pointer"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DGM_MAX_ROWS=3"),
    ),
    "threads": ("-g1", "-O1", "-fsanitize=thread"),
}


class MissingToolError(Exception):
    """A compiler is not installed; ``package`` is the Debian package that has it."""

    def __init__(self, tool: str, package: str) -> None:
        super().__init__(f"{tool} is not installed (Debian: apt-get install {package})")


@dataclass(frozen=True, slots=True)
class Program:
    """One self-test compiled for one level. ``test`` "detect" lists the processor's levels."""

    test: str
    level: str
    variant: str = "plain"

    @property
    def machine(self) -> str:
        """The architecture it runs on."""
        if self.level in ARM_LEVELS:
            return "aarch64"
        return platform.machine() if self.level == "scalar" else "x86_64"


# Its lanes are arrays, with a check for each access: to optimize that takes minutes.
SLOW_TO_COMPILE = Program("linear_test", "scalar", "sanitized")


def self_tests() -> tuple[str, ...]:
    """The self-tests there are."""
    return tuple(sorted(p.stem for p in (CSRC / "test").glob("*_test.cpp")))


@cache
def cmake_flags() -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The levels with their flags, and the flags of all, as CMakeLists.txt has them."""
    text = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text())
    text = re.sub(r"function\(level.*?endfunction\(\)", "", text, flags=re.DOTALL)
    levels = {m[1]: tuple(m[2].split()) for m in re.finditer(r"\blevel\(\s*(\w+)([^)]*)\)", text)}
    common = re.search(r"set\(FLAGS\s([^)]*)\)", text)
    if common is None:
        raise RuntimeError("CMakeLists.txt has no set(FLAGS …)")
    return levels, tuple(common[1].split())


def sources(test: str) -> list[Path]:
    """The files of a self-test: its own, its kernel family's, the pool, and what it names.

    ``x_test.cpp`` needs ``family/x*.cpp``; a comment ``// links: a.cpp b.cpp`` adds others.
    """
    if test == "detect":
        return [CSRC / "test" / "detect.cpp", CSRC / "isa" / "detect.cpp"]
    own = CSRC / "test" / f"{test}.cpp"
    family = test.removesuffix("_test")
    named = re.findall(r"^// links: (.*)$", own.read_text(), flags=re.MULTILINE)
    return [
        own,
        CSRC / "threads.cpp",
        *sorted((CSRC / "family").glob(f"{family}.cpp")),
        *sorted((CSRC / "family").glob(f"{family}_*.cpp")),
        *(CSRC / name for line in named for name in line.split()),
    ]


@cache
def _compiler(machine: str) -> tuple[str, ...]:
    """The compiler for a machine, with what a foreign one needs to link statically."""
    if machine == platform.machine():
        command = os.environ.get("CXX", "g++")
        if shutil.which(command.split()[0]) is None:
            raise MissingToolError(command, "g++")
        return tuple(command.split())
    command = f"{machine.replace('_', '-')}-linux-gnu-g++"
    if shutil.which(command) is None:
        raise MissingToolError(command, f"g++-{machine.replace('_', '-')}-linux-gnu")
    return (command, "-static")


@cache
def _version(machine: str) -> bytes:
    command = [*_compiler(machine), "-v"]
    return subprocess.run(command, capture_output=True, check=True).stderr


@cache
def _closure(file: Path) -> frozenset[Path]:
    """The file and all of ours that it includes."""
    seen: set[Path] = set()
    waiting = [file]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', current.read_text(), re.MULTILINE):
            near = [(folder / name).resolve() for folder in (current.parent, CSRC)]
            waiting.extend([path for path in near if path.exists()][:1])
    return frozenset(seen)


def _digest(salt: bytes, source: Path) -> bytes:
    """Hash of all that decides an object: the command, the compiler, the text."""
    digest = hashlib.sha256(salt)
    for path in sorted(_closure(source)):
        digest.update(path.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _command(program: Program) -> list[str]:
    levels, common = cmake_flags()
    flags = () if program.test == "detect" else levels[program.level]
    return [
        *_compiler(program.machine),
        *("-std=c++20", "-pthread", "-Werror", f"-I{CSRC}", f"-DGM_{program.level.upper()}"),
        *common,
        *flags,
        *VARIANTS[program.variant],
        *(("-O0",) if program == SLOW_TO_COMPILE else ()),
    ]


def _produce(command: Sequence[str], target: Path) -> Path:
    """Run a command that writes ``-o`` its target, unless the target is there."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        done = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-6000:]}")
        made.replace(target)
    return target


class Builder:
    """Compiles in the background, every object once, on all cores."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._links = ThreadPoolExecutor(4)
        self._objects: dict[Path, Future[Path]] = {}
        self._programs: dict[Program, Future[Path]] = {}
        self._lock = threading.Lock()

    def submit(self, program: Program) -> Future[Path]:
        """Start to build; the future raises MissingToolError, or RuntimeError with the errors."""
        with self._lock:
            if program not in self._programs:
                self._programs[program] = self._start(program)
            return self._programs[program]

    def _start(self, program: Program) -> Future[Path]:
        future: Future[Path] = Future()
        try:
            command = _command(program)
            salt = _version(program.machine) + "\0".join(command).encode()
        except MissingToolError as error:
            future.set_exception(error)
            return future
        objects: list[Future[Path]] = []
        name = hashlib.sha256(salt)
        for source in sources(program.test):
            key = _digest(salt, source)
            name.update(key)
            target = CACHE / program.level / f"{source.stem}-{key.hex()[:20]}.o"
            if target not in self._objects:
                compiling = self._pool.submit(_produce, [*command, "-c", str(source)], target)
                self._objects[target] = compiling
            objects.append(self._objects[target])
        target = CACHE / program.level / f"{program.test}-{name.hexdigest()[:20]}"
        return self._links.submit(
            lambda: _produce([*command, *(str(o.result()) for o in objects)], target)
        )

    def path(self, program: Program) -> Path:
        """The built program."""
        return self.submit(program).result()


def main(arguments: Sequence[str]) -> int:
    """Build one program and print its path."""
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    level, test, *variant = arguments
    print(Builder().path(Program(test, level, *variant)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
