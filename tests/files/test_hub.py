"""``hf:`` references against a local server that speaks the hub's routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.errors import SourceError, UnsupportedError
from gristmill.files import download as download_module
from gristmill.files import open_model
from gristmill.files.hub import HubFile, choose
from gristmill.files.sources import list_models, remove_model, resolve
from tests.files.raw import Raw, tensor
from tests.files.safetensors import index, shard
from tests.files.server import REVISION, Site, serving
from tests.hostile.test_gguf import part

REPO = "owner/small-GGUF"


def model(seed: int) -> bytes:
    return Raw(tensors=[tensor("t", (64,), 24, 0)], data=bytes([seed]) * 64).build()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    files = {
        "README.md": b"hello",
        "small-Q4_K_M.gguf": model(1),
        "small-Q8_0.gguf": model(2),
        "small-UD-Q4_K_XL.gguf": model(3),
        "mmproj-F16.gguf": model(4),
        "BF16/small-BF16-00001-of-00002.gguf": part(0, 2),
        "BF16/small-BF16-00002-of-00002.gguf": part(1, 2),
    }
    plain = {
        "config.json": b"{}",
        "model.safetensors.index.json": index(
            a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors"
        ),
        "model-00001-of-00002.safetensors": shard(a=("F32", [2], bytes(8))),
        "model-00002-of-00002.safetensors": shard(b=("BF16", [3], bytes(6))),
        "consolidated.safetensors": b"Mistral's own",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"hi",
        "README.md": b"hello",
        "code.py": b"evil",
        "original/params.json": b"{}",
    }
    pickled = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    repos = {REPO: files, "owner/plain": plain, "owner/pickled": pickled}
    with serving(Site(repos=repos)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "store"))
        monkeypatch.setattr(download_module, "RETRY_WAIT", 0.001)
        yield running


@pytest.mark.parametrize(
    ("choice", "seed"),
    [("", 1), (":Q8_0", 2), (":q8_0", 2), (":UD-Q4_K_XL", 3), (":small-Q8_0.gguf", 2)],
)
def test_the_file_that_is_meant(site: Site, choice: str, seed: int) -> None:
    path = resolve(f"hf:{REPO}{choice}")
    assert path.read_bytes() == model(seed)
    assert (f"/{REPO}/resolve/{REVISION}/{path.name}") in [p for p, _ in site.requests]


def test_the_same_file_by_two_references_is_stored_once(site: Site) -> None:
    path = resolve(f"hf:{REPO}")
    assert resolve(f"hf:{REPO}:Q4_K_M") == path
    assert len(site.bodies()) == 1
    (stored,) = list_models()
    assert set(stored.references) >= {f"hf:{REPO}", f"hf:{REPO}:Q4_K_M"}
    count = len(site.requests)
    resolve(f"hf:{REPO}")
    assert len(site.requests) == count
    remove_model(f"hf:{REPO}:Q4_K_M")
    assert list_models() == []


def test_a_split_model_comes_with_all_its_parts(site: Site) -> None:
    path = resolve(f"hf:{REPO}:BF16")
    assert resolve(f"hf:{REPO}:small-BF16-00001-of-00002.gguf") == path
    assert path.name == "small-BF16-00001-of-00002.gguf"
    assert len(open_model(path).tensors) == 2


def test_resumed_after_a_cut(site: Site) -> None:
    site.cuts = [50]
    assert resolve(f"hf:{REPO}").read_bytes() == model(1)
    assert [h.get("range") for h in site.bodies()] == [None, "bytes=50-"]


def test_the_announced_hash_is_held_to(site: Site) -> None:
    site.wrong_sha = True
    with pytest.raises(SourceError, match="SHA-256"):
        resolve(f"hf:{REPO}")
    assert list_models() == []


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("hf:owner/none", "could not be read"),
        (f"hf:{REPO}:Q5_K_M", "names 0 of the files"),
        (f"hf:{REPO}:other.gguf", r"small-Q8_0\.gguf"),
    ],
)
def test_what_is_not_there(site: Site, reference: str, says: str) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        resolve(reference)
    assert "\n" not in str(caught.value)


def test_a_repository_of_safetensors_comes_whole(site: Site) -> None:
    path = resolve("hf:owner/plain")
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert set(open_model(path).tensors) == {"a", "b"}
    assert resolve("hf:owner/plain:safetensors") == path


def test_pickles_are_refused_before_they_are_fetched(site: Site) -> None:
    with pytest.raises(UnsupportedError, match="pickles"):
        resolve("hf:owner/pickled")
    assert site.bodies() == []


def files(*paths: str) -> list[HubFile]:
    return [HubFile(path, 1, None) for path in paths]


def test_choosing() -> None:
    assert choose("r", files("only-IQ1_S.gguf"), "")[0].path == "only-IQ1_S.gguf"
    two = files("m.Q8_0.gguf", "m.F16.gguf")
    assert choose("r", two, "")[0].path == "m.Q8_0.gguf"
    with pytest.raises(SourceError, match="names 2"):
        choose("r", files("a-Q8_0.gguf", "b-Q8_0.gguf"), "Q8_0")
    with pytest.raises(SourceError, match="Which of the files"):
        choose("r", files("a-odd.gguf", "b-odd.gguf"), "")
    with pytest.raises(SourceError, match="names 0"):
        choose("r", files("a-Q4_K_M.gguf", "a-Q4_K_S.gguf"), "Q4_K")
    with pytest.raises(SourceError, match="lacks m-00002-of-00002"):
        choose("r", files("m-00001-of-00002.gguf"), "")
    with pytest.raises(SourceError, match="neither a GGUF file nor"):
        choose("r", files("readme.md"), "")
