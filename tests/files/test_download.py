"""Downloads over HTTP: cut, resumed, wrong, too large for the disk, asked for twice."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from gristmill.errors import GristmillError, ResourceError, SourceError, UsageError
from gristmill.files import download as download_module
from gristmill.files import open_model
from gristmill.files.download import Wanted, download
from gristmill.files.sources import list_models, remove_model, resolve
from gristmill.files.store import Store, model_name, no_progress
from tests.files.raw import Raw, small, tensor
from tests.files.server import Site, serving

DATA = np.random.default_rng(5).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
SHA = hashlib.sha256(DATA).hexdigest()
MODEL = Raw(tensors=[tensor("a", (len(DATA),), 24, 0)], data=DATA).build()
MODEL_SHA = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "RETRY_WAIT", 0.001)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "store"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(files={"/data.bin": DATA, "/m.gguf": MODEL})) as running:
        yield running


def wanted(site: Site, folder: Path, **known: object) -> Wanted:
    return Wanted(f"{site.url}/data.bin", folder / "data.bin", "data", **known)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_arrives_whole_with_progress(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None, str]] = []
    download(
        wanted(site, tmp_path, size=len(DATA), sha256=SHA),
        lambda done, total, label: seen.append((done, total, label)),
    )
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert names(tmp_path) == ["data.bin"]
    done = [d for d, _, _ in seen]
    assert done == sorted(done)
    assert seen[0][0] == 0
    assert seen[-1] == (len(DATA), len(DATA), "data")


def test_a_cut_connection_is_continued_where_it_ended(site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000, 50_000, 0]
    download(wanted(site, tmp_path), no_progress)
    assert (tmp_path / "data.bin").read_bytes() == DATA
    ranges = [h.get("range") for h in site.bodies()]
    assert ranges == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-"]
    assert site.bodies()[1]["if-range"] == '"v1"'


def test_another_run_continues_what_an_earlier_one_left(site: Site, tmp_path: Path) -> None:
    site.cuts = [123_456] + [0] * 10
    with pytest.raises(SourceError, match="Try again"):
        download(wanted(site, tmp_path), no_progress)
    assert names(tmp_path) == ["data.bin.part", "data.bin.part.json"]
    site.cuts = []
    download(wanted(site, tmp_path), no_progress)
    assert site.bodies()[-1]["range"] == "bytes=123456-"
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert names(tmp_path) == ["data.bin"]


def test_a_file_that_changed_meanwhile_is_fetched_anew(site: Site, tmp_path: Path) -> None:
    site.cuts = [200_000] + [0] * 10
    with pytest.raises(SourceError):
        download(wanted(site, tmp_path), no_progress)
    site.cuts, site.etag, site.files["/data.bin"] = [], '"v2"', DATA[::-1]
    download(wanted(site, tmp_path), no_progress)
    assert (tmp_path / "data.bin").read_bytes() == DATA[::-1]


@pytest.mark.parametrize("lacks", ["ranges", "validators"])
def test_servers_that_cannot_continue(site: Site, tmp_path: Path, lacks: str) -> None:
    setattr(site, lacks, False)
    site.cuts = [100_000]
    download(wanted(site, tmp_path), no_progress)
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_a_known_hash_stands_in_for_a_validator(site: Site, tmp_path: Path) -> None:
    site.validators = False
    site.cuts = [100_000]
    download(wanted(site, tmp_path, sha256=SHA), no_progress)
    assert site.bodies()[1]["range"] == "bytes=100000-"
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_a_file_that_was_whole_but_not_renamed(site: Site, tmp_path: Path) -> None:
    site.cuts = [len(DATA) - 1] + [0] * 10
    with pytest.raises(SourceError):
        download(wanted(site, tmp_path), no_progress)
    site.cuts = []
    (tmp_path / "data.bin.part").write_bytes(DATA)
    download(wanted(site, tmp_path), no_progress)
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_wrong_hash_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"SHA-256 is {SHA}"):
        download(wanted(site, tmp_path, sha256="0" * 64), no_progress)
    assert names(tmp_path) == []


@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_wrong_size(site: Site, tmp_path: Path, sizes: bool, size: int) -> None:
    site.sizes = sizes
    with pytest.raises(SourceError):
        download(wanted(site, tmp_path, size=size), no_progress)
    assert "data.bin" not in names(tmp_path)


def test_a_server_without_sizes(site: Site, tmp_path: Path) -> None:
    site.sizes = False
    totals: set[int | None] = set()
    download(wanted(site, tmp_path), lambda _done, total, _label: totals.add(total))
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert totals == {None}


def test_passing_troubles_are_waited_out(site: Site, tmp_path: Path) -> None:
    site.statuses = [503, 429, 500]
    download(wanted(site, tmp_path), no_progress)
    assert (tmp_path / "data.bin").read_bytes() == DATA


@pytest.mark.parametrize(("status", "says"), [(404, "no such file"), (403, "access"), (410, "410")])
def test_lasting_troubles_are_told_at_once(
    site: Site, tmp_path: Path, status: int, says: str
) -> None:
    site.statuses = [status]
    with pytest.raises(SourceError, match=says):
        download(wanted(site, tmp_path), no_progress)
    assert len(site.requests) == 1


def test_nobody_there(tmp_path: Path) -> None:
    nowhere = Wanted("http://127.0.0.1:9/x.gguf", tmp_path / "x", "x")
    with pytest.raises(SourceError, match="could not be fetched from"):
        download(nowhere, no_progress)


def test_compressed_answers_are_refused(site: Site, tmp_path: Path) -> None:
    site.extra_headers = {"Content-Encoding": "gzip"}
    with pytest.raises(SourceError, match="compressed"):
        download(wanted(site, tmp_path), no_progress)


# -------------------------------------------------------------------- disk


def test_disk_full_in_mid_download_leaves_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        file = args[1]
        assert hasattr(file, "write")
        file.write(b"some")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download_module, "_copy", full)
    with pytest.raises(ResourceError, match="disk is full"):
        download(wanted(site, tmp_path), no_progress)
    assert names(tmp_path) == []


def test_a_file_larger_than_the_disk_is_refused_before_it_starts(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=len(DATA) - 1)

    def small_disk(_path: Path) -> object:
        return usage

    monkeypatch.setattr(shutil, "disk_usage", small_disk)
    with pytest.raises(ResourceError, match="disk is full"):
        download(wanted(site, tmp_path), no_progress)
    assert names(tmp_path) == []


def test_a_real_full_disk(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full is a disk that is always full."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    def opened(path: Path, mode: str) -> BinaryIO:
        path.touch()
        return Path("/dev/full").open("wb", buffering=0)  # type: ignore[return-value]

    monkeypatch.setattr(download_module, "open", opened, raising=False)
    with pytest.raises(ResourceError, match="disk is full"):
        resolve(f"{site.url}/m.gguf")
    assert [p for p in home.rglob("*") if p.is_file() and p.suffix != ".lock"] == []


def test_a_store_that_cannot_be(site: Site, home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(ResourceError, match="cannot be written"):
        resolve(f"{site.url}/m.gguf")


@pytest.mark.parametrize("place", ["/proc/no/such", "/dev/null/x"])
def test_a_store_where_nothing_can_be_made(
    site: Site, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("GRISTMILL_HOME", place)
    with pytest.raises(ResourceError, match="cannot be written"):
        resolve(f"{site.url}/m.gguf")


# ------------------------------------------------------------- references


def test_an_address_is_fetched_once_and_then_served_offline(site: Site, home: Path) -> None:
    reference = f"{site.url}/m.gguf#sha256={MODEL_SHA}"
    path = resolve(reference)
    assert path.read_bytes() == MODEL
    assert path.is_relative_to(home)
    count = len(site.requests)
    assert resolve(reference) == path
    assert len(site.requests) == count
    (model,) = list_models()
    assert (model.references, model.path, model.bytes) == ((reference,), path, len(MODEL))
    assert remove_model(reference) > len(MODEL) - 1
    assert list_models() == []
    assert not path.exists()
    with pytest.raises(SourceError, match="not in the model store"):
        remove_model(reference)


def test_a_damaged_stored_file_is_fetched_again(site: Site) -> None:
    path = resolve(f"{site.url}/m.gguf")
    path.write_bytes(MODEL[:-1])
    assert list_models() == []
    assert resolve(f"{site.url}/m.gguf").read_bytes() == MODEL


@pytest.mark.parametrize(
    "name", ["x" * 300 + ".gguf", "a\\b.gguf", "a\nb.gguf", ".gguf", "x.bin", "a/"]
)
def test_unfit_file_names(name: str) -> None:
    with pytest.raises(SourceError, match="unfit name") as caught:
        model_name(name, "somewhere")
    assert "\n" not in str(caught.value)


def test_a_login_page_is_no_model(site: Site) -> None:
    site.files["/m.gguf"] = b"<!DOCTYPE html>please log in" * 10
    with pytest.raises(SourceError, match="did not bring a model"):
        resolve(f"{site.url}/m.gguf")
    assert list_models() == []
    site.files["/m.gguf"] = MODEL
    assert resolve(f"{site.url}/m.gguf").read_bytes() == MODEL


def test_all_parts_of_a_split_model_are_fetched(site: Site) -> None:
    from tests.hostile.test_gguf import part

    for number in range(2):
        site.files[f"/d/m-{number + 1:05d}-of-00002.gguf"] = part(number, 2)
    path = resolve(f"{site.url}/d/m-00002-of-00002.gguf")
    assert len(open_model(path).tensors) == 2
    assert len(list_models()[0].files) == 2


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("", UsageError),
        ("no-such-file.gguf", SourceError),
        ("ollama:thing", SourceError),
        ("a\0b", SourceError),
        ("x" * 5000, SourceError),
        ("~nobody-by-this-name/x", SourceError),
        ("https://", UsageError),
        ("https://host/", UsageError),
        ("https://host/model.zip", UsageError),
        ("https://host/..%2F..%2Fx.gguf", UsageError),
        ("https://[::1/x.gguf", UsageError),
        ("https://host/x.gguf#sha256=12", UsageError),
        ("https://host/x.gguf#md5=12", UsageError),
        ("pypi:", UsageError),
        ("pypi:--index-url=http://evil", UsageError),
        ("pypi:name>=1", UsageError),
        ("pypi:name==", UsageError),
        ("hf:", UsageError),
        ("hf:a/b/c", UsageError),
        ("hf:../x", UsageError),
    ],
)
def test_what_is_no_reference(reference: str, error: type[GristmillError]) -> None:
    with pytest.raises(error) as caught:
        resolve(reference)
    assert "\n" not in str(caught.value)


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small().build())
    assert resolve(str(path)) == path


# -------------------------------------------------------------- concurrency


def test_threads_that_want_the_same_model_fetch_it_once(site: Site) -> None:
    found: list[Path] = []
    labels: set[str] = set()

    def want() -> None:
        found.append(resolve(f"{site.url}/m.gguf", lambda _d, _t, label: labels.add(label)))

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 6
    assert len(site.bodies()) == 1


def _want(url: str, home: str) -> None:
    os.environ["GRISTMILL_HOME"] = home
    assert resolve(url).read_bytes() == MODEL


def test_processes_that_want_the_same_model_fetch_it_once(site: Site, home: Path) -> None:
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=_want, args=(f"{site.url}/m.gguf", str(home))) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert [job.exitcode for job in jobs] == [0, 0]
    assert len(site.bodies()) == 1


def test_unreadable_records_are_no_models(home: Path) -> None:
    store = Store(home)
    for number, content in enumerate(
        ["", "[]", "{}", '{"files": "x"}', '{"files": ["../../x"], "references": ["r"]}']
    ):
        folder = store.make(store.folder(str(number)))
        (folder / "model.json").write_text(content)
    assert store.models() == []
