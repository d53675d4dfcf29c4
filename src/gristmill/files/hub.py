"""``hf:<owner>/<repo>[:<quant or file>]``: a GGUF file of a Hugging Face repository, or the
whole of one with safetensors.

``huggingface_hub`` says what the repository holds, at ``HF_ENDPOINT`` and with the user's
token; the bytes come through ``download``, against the SHA-256 that the hub announces.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gristmill.errors import SourceError, UnsupportedError, UsageError
from gristmill.files.gguf import split_names
from gristmill.files.store import RECORD, Progress, Store, StoredModel, model_name

PREFERRED = (
    *("Q4_K_M", "Q8_0", "Q4_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q4_1", "IQ4_XS", "IQ4_NL"),
    *("Q5_K_S", "Q3_K_M", "MXFP4", "BF16", "F16", "F32"),
)
"""Which encoding is taken when none is asked for, best first."""

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    path: str
    size: int | None
    sha256: str | None


def canonical(rest: str) -> str:
    """The reference as given; ``UsageError`` if it is none."""
    repo, choice = _parse(rest)
    return f"hf:{repo}" + (f":{choice}" if choice else "")


def _parse(rest: str) -> tuple[str, str]:
    repo, _, choice = rest.partition(":")
    if _REPO.fullmatch(repo) is None:
        raise UsageError(
            f"'hf:{rest}' is not a model reference; hf:<owner>/<repository>, "
            "hf:<owner>/<repository>:<quantisation> or …:<file> is allowed."
        )
    return repo, choice


def fetch(store: Store, rest: str, progress: Progress) -> StoredModel:
    """Choose the file of a repository and download it, with its siblings if it is split."""
    from gristmill.files.download import Wanted, download  # brings httpx: only when needed

    repo, choice = _parse(rest)
    reference = canonical(rest)
    progress(0, None, f"looking at {repo}")
    revision, files = _list_files(repo)
    chosen = choose(repo, files, choice)
    identity = f"hf:{repo}:{chosen[0].path}"
    with store.lock(f"model {identity}", lambda: progress(0, None, f"waiting: {repo}")):
        known = store.at(identity)
        if known is not None:
            return store.also_called(known, reference)
        folder = store.prepare(identity)
        names = [model_name(file.path, f"hf:{repo}") for file in chosen]
        for file, name in zip(chosen, names, strict=True):
            if not (folder / name).exists():
                url, headers = _address(repo, file.path, revision)
                wanted = Wanted(url, folder / name, name, file.size, file.sha256, headers)
                download(wanted, progress)
        known = store.record(identity, reference, names, f"{repo} at {revision}")
        return store.also_called(known, identity)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _list_files(repo: str) -> tuple[str, list[HubFile]]:
    """The commit that ``main`` is at, and its files."""
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=_endpoint()).model_info(repo, files_metadata=True, timeout=30)
        files: list[HubFile] = []
        for item in info.siblings or []:
            sha = item.lfs.sha256 if item.lfs else None
            files.append(HubFile(item.rfilename, item.size, sha))
    except Exception as error:  # the library's HTTP client, and so its errors, vary by version
        where = _endpoint() or "huggingface.co"
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceError(f"hf:{repo} could not be read at {where}: {said[0]}") from error
    return info.sha or "main", files


def _address(repo: str, path: str, revision: str) -> tuple[str, dict[str, str]]:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # pyright: ignore[reportUnknownVariableType]

    url = hf_hub_url(repo, path, revision=revision, endpoint=_endpoint())
    return url, dict(build_hf_headers(library_name="gristmill"))


def choose(repo: str, files: list[HubFile], choice: str) -> list[HubFile]:
    """The file that ``choice`` (a file, an encoding, or "") means; all its parts if split.

    Raises ``SourceError`` when it means none or several, naming what there is.
    """
    models = {
        f.path: f
        for f in files
        if f.path.endswith(".gguf") and not re.search(r"mmproj|imatrix", f.path, re.IGNORECASE)
    }
    firsts = {p: f for p, f in models.items() if _is_first(p)}
    if choice == "safetensors" or (not firsts and not choice):
        return _folder(repo, files)
    if not firsts:
        raise SourceError(f"hf:{repo} holds no GGUF file, so there is no {choice!r} to choose.")
    if choice.endswith(".gguf"):
        found = [choice] if choice in models else [p for p in models if p.endswith(f"/{choice}")]
    elif choice:
        found = [p for p in firsts if _names_encoding(p, choice)]
    else:
        found = _preferred(list(firsts))
    if len(found) != 1:
        what = f"{choice!r} names {len(found)} of the" if choice else "Which of the"
        raise SourceError(
            f"hf:{repo}: {what} files is meant? It holds {', '.join(sorted(firsts))}; "
            f"name one as hf:{repo}:<file>."
        )
    return _with_parts(repo, models, found[0])


def _folder(repo: str, files: list[HubFile]) -> list[HubFile]:
    """The files of a safetensors model, config.json first: what its folder is known by."""
    here = {f.path: f for f in files if "/" not in f.path}
    shards = [p for p in here if p.endswith(".safetensors") and _is_shard(p, here)]
    if "config.json" not in here or not shards:
        pickled = any(f.path.endswith((".bin", ".pt", ".pth")) for f in files)
        if pickled:
            raise UnsupportedError(
                f"hf:{repo} holds torch pickles, which can run code when they are opened and "
                "are always refused; name a repository with safetensors or GGUF."
            )
        raise SourceError(
            f"hf:{repo} holds neither a GGUF file nor safetensors with a config.json."
        )
    texts = [
        p
        for p in here
        if p != "config.json"
        and (p.endswith((".json", ".jinja")) or p in ("tokenizer.model", "merges.txt"))
        and p != RECORD
    ]
    return [here["config.json"], *(here[p] for p in sorted(texts)), *(here[p] for p in shards)]


def _is_shard(path: str, here: dict[str, HubFile]) -> bool:
    """Not Mistral's own copy of the same weights, where both are there; no adapter."""
    if path.startswith("adapter_"):
        return False
    named = [p for p in here if p.startswith("model") and p.endswith(".safetensors")]
    return path in named or not named


def _preferred(paths: list[str]) -> list[str]:
    if len(paths) == 1:
        return paths
    for encoding in PREFERRED:
        found = [p for p in paths if _names_encoding(p, encoding)]
        if found:
            return found
    return paths


def _is_first(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    parts = split_names(name)
    return not parts or name == parts[0]


def _names_encoding(path: str, encoding: str) -> bool:
    """Whether the file's name holds the encoding as a word: "Q4_K" is not in "Q4_K_M"."""
    stem = path.rsplit("/", 1)[-1].removesuffix(".gguf")
    word = rf"(?:^|[-.]){re.escape(encoding)}(?:$|[-.])"
    return re.search(word, stem, re.IGNORECASE) is not None


def _with_parts(repo: str, models: dict[str, HubFile], path: str) -> list[HubFile]:
    folder, slash, name = path.rpartition("/")
    chosen: list[HubFile] = []
    for part in split_names(name) or [name]:
        file = models.get(f"{folder}{slash}{part}")
        if file is None:
            raise SourceError(f"hf:{repo} lacks {part}, a part of the model {path}.")
        chosen.append(file)
    return chosen
