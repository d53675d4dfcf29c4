"""Whole models in each format: the logits of the same model with the decoded weights as floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.files import open_model
from gristmill.files.describe import describe
from gristmill.models import understand
from gristmill.quant import COMPOSITES, decode

from .runner import error

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from .export import random_model  # noqa: E402
from .test_huggingface import logits  # noqa: E402

SIZES = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
MODELS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES),
}
T = Any  # a torch tensor

Writer = Callable[[T], dict[str, T]]
"""A float matrix → tensors that replace it, by what follows the module's name."""


def words(*shape: int) -> T:
    return torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int64).to(torch.int32)


def small(*shape: int) -> T:
    return (torch.rand(shape) * 0.01 + 0.005).half()


def middle(*shape: int) -> T:
    """Words of zeros 7 and 8: the codes lie around them."""
    return torch.full(shape, 0x78787878, dtype=torch.int32)


def awq(w: T) -> dict[str, T]:
    n, k = w.shape
    return {
        "qweight": words(k, n // 8),
        "qzeros": middle(k // 32, n // 8),
        "scales": small(k // 32, n),
    }


def gptq(w: T) -> dict[str, T]:
    n, k = w.shape
    order = (torch.randperm(k) // 32).to(torch.int32)
    made = {"qweight": words(k // 8, n), "qzeros": middle(k // 32, n // 8), "g_idx": order}
    return made | {"scales": small(k // 32, n)}


def fp8_block(w: T) -> dict[str, T]:
    n, k = w.shape
    scale = torch.rand(-(-n // 128), -(-k // 128)) * 0.004 + 0.002
    return {"weight": (w * 300).to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def packed(w: T) -> dict[str, T]:
    n, k = w.shape
    shape = torch.tensor([n, k])
    return {
        "weight_packed": words(n, k // 8),
        "weight_scale": small(n, k // 32),
        "weight_shape": shape,
    }


def int8(w: T) -> dict[str, T]:
    scale = w.abs().amax(1, keepdim=True) / 127
    return {"weight": (w / scale).round().to(torch.int8), "weight_scale": scale.bfloat16()}


def mlx(w: T) -> dict[str, T]:
    n, k = w.shape
    scale = small(n, k // 64)
    return {"weight": words(n, k // 8).view(torch.uint32), "scales": scale, "biases": scale * -7.5}


def nvfp4(w: T) -> dict[str, T]:
    n, k = w.shape
    return {
        "weight": torch.randint(0, 256, (n, k // 2), dtype=torch.uint8),
        "weight_scale": (torch.rand(n, k // 16) * 100 + 100).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.0003),
    }


def mxfp4(w: T) -> dict[str, T]:
    n, k = w.shape
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    return {
        "weight_packed": codes,
        "weight_scale": torch.full((n, k // 32), 122, dtype=torch.uint8),
    }


def nf4(w: T) -> dict[str, T]:
    n, k = w.shape
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [n, k]})
    return {
        "weight": torch.randint(0, 256, (n * k // 2, 1), dtype=torch.uint8),
        "weight.absmax": torch.rand(n * k // 64) * 0.1,
        "weight.quant_map": torch.linspace(-1, 1, 16),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(
            list(state.encode()), dtype=torch.uint8
        ),
    }


def llm_int8(w: T) -> dict[str, T]:
    return {
        "weight": (w / w.abs().max() * 127).round().to(torch.int8),
        "SCB": torch.rand(w.shape[0]) * 0.2 + 0.2,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }


def hqq(w: T) -> dict[str, T]:
    n, k = w.shape
    groups = n * k // 64
    return {
        "W_q": torch.randint(0, 256, (groups // 2, 64), dtype=torch.uint8),
        "scale": small(groups, 1),
        "zero": (torch.rand(groups, 1) + 7).half(),
        "nbits": torch.tensor(4, dtype=torch.int32),
        "group_size": torch.tensor(64, dtype=torch.int32),
        "axis": torch.tensor(1, dtype=torch.int32),
        "shape": torch.tensor([n, k]),
    }


def exl3(w: T) -> dict[str, T]:
    n, k = w.shape
    trellis = torch.randint(-(1 << 15), 1 << 15, (k // 16, n // 16, 64)).to(torch.int16)
    marker = torch.tensor(0x83DCD12D, dtype=torch.uint32).view(torch.int32)
    return {
        "trellis": trellis,
        "suh": torch.randn(k).sign().half(),
        "svh": (torch.randn(n).sign() * 0.05).half(),
        "mul1": marker,
    }


def ct(form: str, **weights: object) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    method = {"quant_method": "compressed-tensors", "format": form}
    return {"quantization_config": {**method, "config_groups": groups, "ignore": ["lm_head"]}}


def method(name: str, **settings: object) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": name, **settings}}


FORMATS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "awq": (awq, method("awq", bits=4, group_size=32, version="gemm")),
    "gptq": (gptq, method("gptq", bits=4, group_size=32, desc_act=True)),
    "fp8": (fp8_block, method("fp8", weight_block_size=[128, 128])),
    "ct-pack": (packed, ct("pack-quantized", num_bits=4, group_size=32)),
    "ct-int8": (int8, ct("int-quantized", num_bits=8, strategy="channel")),
    "mlx": (mlx, {"quantization": {"bits": 4, "group_size": 64}}),
    "nvfp4": (nvfp4, method("modelopt", quant_algo="NVFP4")),
    "mxfp4": (mxfp4, ct("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32)),
    "nf4": (nf4, method("bitsandbytes", load_in_4bit=True)),
    "llm-int8": (llm_int8, method("bitsandbytes", load_in_8bit=True)),
    "hqq": (hqq, method("hqq", quant_config={})),
    "exl3": (exl3, method("exl3", bits=4.0)),
}


def write(folder: Path, name: str, form: str) -> None:
    """A model in a format: its decoder's matrices but one, which stays as it is, as is the head."""
    torch.manual_seed(3)
    config = deepcopy(MODELS[name])
    model = random_model(config).to(torch.bfloat16)
    config.save_pretrained(folder)
    writer, extra = FORMATS[form]
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | extra))
    tensors: dict[str, T] = {}
    for key, weight in model.state_dict().items():
        module = key.removesuffix(".weight")
        if module.endswith("_proj") and not module.endswith("1.mlp.up_proj"):
            for suffix, tensor in writer(weight.float()).items():
                tensors[f"{module}.{suffix}"] = tensor.contiguous()
        else:
            tensors[key] = weight.contiguous()
    safetensors.save_file(tensors, folder / "model.safetensors")


def write_floats(source: Path, folder: Path, name: str) -> None:
    """The same model, its composites decoded: as bfloat16 what fits it, else float32."""
    checkpoint = understand(open_model(source))
    said = json.loads((source / "config.json").read_text())
    for key in ("quantization_config", "quantization"):
        said.pop(key, None)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(said))
    tensors: dict[str, T] = {}
    for tensor in checkpoint.tensors.values():
        values = torch.from_numpy(decode(tensor))
        narrow = values.bfloat16()
        tensors[tensor.name] = narrow if torch.equal(narrow.float(), values) else values
    safetensors.save_file(tensors, folder / "model.safetensors")


def ids() -> list[int]:
    return np.random.default_rng(1).integers(0, SIZES["vocab_size"], 21).tolist()


PACKED = {"awq", "gptq", "ct-pack", "ct-int8", "mlx", "llm-int8", "hqq", "mxfp4", "nvfp4", "nf4"}


def bound(backend: str, form: str) -> float:
    """Packed codes are multiplied by activations of int8, floats of 8 bits by such of bfloat16
    where processors can, other floats by activations as they are."""
    if backend == "cpu" and form in PACKED:
        return 0.04
    return 0.02 if backend == "cpu" and form == "fp8" else 1e-6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", FORMATS)
def test_the_decoded_models_logits(form: str, name: str, tmp_path: Path) -> None:
    write(tmp_path / "q", name, form)
    checkpoint = understand(open_model(tmp_path / "q"))
    assert sum(t.encoding in COMPOSITES for t in checkpoint.tensors.values()) == 13
    write_floats(tmp_path / "q", tmp_path / "f", name)
    for backend in ("reference", "cpu"):
        got = logits(tmp_path / "q", backend, ids())
        want: npt.NDArray[np.float32] = logits(tmp_path / "f", backend, ids())
        assert np.isfinite(want).all() and want.std() > 0.01
        assert error(got, want) < bound(backend, form)


def test_described_and_let_go(tmp_path: Path) -> None:
    """Encodings by their family's name, bytes of all parts; the pages of each part go."""
    write(tmp_path, "llama", "gptq")
    opened = open_model(tmp_path)
    gone: list[str] = []
    checkpoint = understand(replace(opened, release=lambda tensor: gone.append(tensor.name)))
    shares = {share.encoding: share for share in describe(checkpoint).encodings}
    assert set(shares) == {"gptq", "bf16"} and shares["gptq"].tensors == 13
    assert sum(s.bytes for s in shares.values()) == sum(t.nbytes for t in opened.tensors.values())
    for tensor in checkpoint.tensors.values():
        checkpoint.release(tensor)
    assert sorted(gone) == sorted(opened.tensors)
