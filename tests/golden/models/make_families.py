"""Write what ``transformers`` computes for tiny models, and what llama.cpp makes of their files.

    PYTHONPATH=src python -m tests.golden.models.make_families LLAMA_CPP [NAME …]

LLAMA_CPP is a source tree of llama.cpp; its own converter is run on each model (without a
vocabulary), and what it wrote is kept as recipes: which tensors it took, and what it did to
their rows. Made with llama.cpp as llama-cpp-python 0.3.36 carries it, transformers 5.24.0 and
torch 2.13.0 (float64).
"""

# What makes the vectors is installed nowhere else.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from gristmill.files import open_model
from gristmill.quant import decode
from tests.models.recipes import FOLDER, cooked, values
from tests.models.shapes import COMMON, CONFIGS, ONLY_FOLDERS, auto, disguise

TOKENS = 45
EAGER = {"experts_implementation": "eager"}
ROWS = [0, 1, 8, 9, 17, 31, 32, 44]


def made(config: Any, folder: Path) -> list[list[Any]]:
    """Save a model of made weights; the name, shape, spread and centre of each tensor."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = auto(config).from_config(deepcopy(config))
    if any(".experts." in name for name in model.state_dict()):
        return remade(model, folder)
    plus = config.model_type.startswith("gemma") and not config.model_type.startswith("gemma4")
    recipes: list[list[Any]] = []
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread, centre = 0.3, 0.0 if plus or name.endswith("bias") else 1.0
            if weight.dim() > 1 and "norm" not in name:
                spread = 1.0 if "embed" in name else 1.3 / math.sqrt(weight.shape[1])
                centre = 0.0
            spread = round(spread, 4)
            recipes.append([name, list(weight.shape), spread, centre])
            weight.copy_(torch.from_numpy(values(name, tuple(weight.shape), spread, centre)))
        for name, buffer in model.named_buffers():
            if name in model.state_dict():
                recipes.append([name, list(buffer.shape), 0.2, 1.0])
                buffer.copy_(torch.from_numpy(values(name, tuple(buffer.shape), 0.2, 1.0)))
    model.float().save_pretrained(folder)
    return [recipe for recipe in recipes if "visual." not in recipe[0]]


def remade(model: Any, folder: Path) -> list[list[Any]]:
    """The same of a mixture of experts, whose tensors have other names in a file."""
    model.float().save_pretrained(folder)
    path = folder / "model.safetensors"
    recipes: list[list[Any]] = []
    made: dict[str, np.ndarray] = {}
    for name, data in load_file(path).items():
        flat = data.ndim < 2 or name.endswith("bias")
        spread = 0.3 if flat else round(1.3 / math.sqrt(data.shape[-1]), 4)
        spread = 1.0 if "embed" in name else spread
        centre = 1.0 if "norm" in name else 0.0
        recipes.append([name, list(data.shape), spread, centre])
        made[name] = values(name, data.shape, spread, centre)
    save_file(made, path, {"format": "pt"})
    return recipes


def convert(llama_cpp: Path, folder: Path, out: Path) -> bool:
    """Run llama.cpp's converter; False if it does not know the architecture."""
    sys.path.insert(0, str(llama_cpp))
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import gguf

    logging.disable(logging.WARNING)
    words = {str(i): i for i in range(COMMON["vocab_size"])}  # Gemma's are counted
    text = json.dumps({"model": {"vocab": words}, "added_tokens": []})
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    hparams = ModelBase.load_hparams(folder, False)
    try:
        kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    except NotImplementedError:
        return False
    kind.no_mtp = True
    with torch.inference_mode():
        made = kind(folder, gguf.LlamaFileType.ALL_F32, out, eager=True)
        for each in (made, getattr(made, "impl", None)):
            if each is not None:
                each.set_vocab = lambda: None
        made.write()
    return True


def recipe(data: np.ndarray, source: dict[str, np.ndarray], heads: set[int]) -> list[Any]:
    """How a converted tensor comes of the model's."""
    shape = list(data.shape)
    for name, found in source.items():
        tries: list[list[Any]] = []
        if found.size == data.size:
            tries = [[shape, "as", 0, [name]], [shape, "plus", 1, [name]]]
            tries += [[shape, "pairs", n, [name]] for n in heads if found.shape[0] % (2 * n) == 0]
        elif found.shape == data.shape[1:]:  # one tensor for each head
            each = [name.replace(".0.weight", f".{i}.weight") for i in range(data.shape[0])]
            tries = [[shape, "as", 0, each]] if all(n in source for n in each) else []
            if ".experts.0." in name:
                each = [name.replace("experts.0.", f"experts.{i}.") for i in range(data.shape[0])]
                tries += [[shape, "as", 0, each]] if all(n in source for n in each) else []
        if found.size == 2 * data.size and data.ndim > 1 and found.shape[-2] % 2 == 0:
            tries += [[shape, how, i, [name]] for i in (0, 1) for how in ("half", "every")]
        if found.size == data.size and data.ndim > 2:
            tries += [[shape, "turned", 0, [name]]]
        for one in tries:
            if np.array_equal(cooked(one, source), data):
                return one
        flat = found if found.ndim < 3 else found.reshape(found.shape[0], -1)  # a convolution's
        if flat.ndim != 2 or data.ndim != 2:
            continue
        order = {row.tobytes(): i for i, row in enumerate(flat)}
        if all(row.tobytes() in order for row in data):
            return [shape, "rows", [order[row.tobytes()] for row in data], [name]]
        order = {column.tobytes(): i for i, column in enumerate(flat.T)}
        if flat.shape == data.shape and all(column.tobytes() in order for column in data.T):
            return [shape, "columns", [order[column.tobytes()] for column in data.T], [name]]
    if data.size > 64:
        raise ValueError(f"no recipe gives a tensor of {data.size} values")
    return [shape, "values", [float(f"{x:.9g}") for x in data.ravel().tolist()]]


def converted(llama_cpp: Path, folder: Path, source: dict[str, np.ndarray]) -> Any:
    """Metadata and recipes of the converter's file."""
    out = folder / "m.gguf"
    if not convert(llama_cpp, folder, out):
        return None
    checkpoint = open_model(out)
    arch = str(checkpoint.metadata["general.architecture"])
    metadata = {
        key: value.tolist() if hasattr(value, "tolist") else value
        for key, value in checkpoint.metadata.items()
        if key == "general.architecture" or key.startswith(f"{arch}.")
    }
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    written = written.get("text_config", written)
    heads = {written["num_attention_heads"], written.get("num_key_value_heads") or 1}
    tensors = {n: recipe(decode(t), source, heads) for n, t in checkpoint.tensors.items()}
    return {"metadata": metadata, "tensors": tensors}


def main() -> None:
    """Write every file, or those named."""
    llama_cpp, *names = sys.argv[1:]
    for name in names or CONFIGS:
        config = CONFIGS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            recipes = made(config, folder)
            model = auto(config).from_pretrained(
                folder, dtype=torch.float64, attn_implementation="eager", **EAGER
            )
            ids = np.random.default_rng(5).integers(3, COMMON["vocab_size"], TOKENS)
            with torch.no_grad():
                logits = model(torch.from_numpy(ids)[None]).logits[0, ROWS].numpy()
            source = {n: values(n, tuple(shape), a, b) for n, shape, a, b in recipes}
            disguise(name, folder)
            own = json.loads((folder / "config.json").read_text())
            gguf = None
            if name not in ONLY_FOLDERS:
                gguf = converted(Path(llama_cpp), folder, source)
        rows = [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]
        data = {"config": own, "tensors": recipes, "gguf": gguf}
        data |= {"ids": ids.tolist(), "rows": ROWS, "logits": rows}
        text = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in data.items())
        (FOLDER / f"{name}.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
        print(name, len(text), "bytes", "" if gguf else "(llama.cpp converts it not)")


if __name__ == "__main__":
    main()
