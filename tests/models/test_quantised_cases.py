"""Cases from public reports: shapes of FP8 scales (BC-51), AWQ's order and zeros (BC-53)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.files import open_model
from gristmill.models import understand
from gristmill.quant import decode

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from .export import random_model  # noqa: E402
from .runner import error  # noqa: E402
from .test_huggingface import logits  # noqa: E402
from .test_quantised_models import SIZES, bound, ids  # noqa: E402

T = Any  # a torch tensor
SHAPES = {"[]": (), "[1]": (1,), "[out]": (-1,), "[out, 1]": (-1, 1)}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "phi3": transformers.Phi3Config(**SIZES),  # qkv_proj and gate_up_proj are one matrix each
}


def settings(strategy: str) -> dict[str, Any]:
    """The group has the name that llm-compressor's recipes give it."""
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True},
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": True,
                              "strategy": "token"},
    }  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"FP8_DYNAMIC": group}, "ignore": ["lm_head"]}  # fmt: skip


def quantised(weight: T, shape: tuple[int, ...]) -> tuple[T, T]:
    """Codes of e4m3 and their scales, of the given shape (-1: the rows)."""
    n = weight.shape[0]
    top = weight.abs().amax(1) if -1 in shape else weight.abs().amax().reshape(1)
    scales = (top / 448).float()
    codes = (weight / (scales[:, None] if -1 in shape else scales)).to(torch.float8_e4m3fn)
    return codes, scales.reshape([n if size == -1 else size for size in shape])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inputs", [False, True], ids=["dynamic", "with input_scale"])
def test_scales_of_fp8(name: str, shape: str, inputs: bool, tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = CONFIGS[name]
    model = random_model(config).to(torch.bfloat16)
    tensors: dict[str, T] = {}
    floats: dict[str, T] = {}
    for key, weight in model.state_dict().items():
        if not key.endswith("_proj.weight"):
            tensors[key] = floats[key] = weight.contiguous()
            continue
        # Each module of another size, so that a scale that strays is seen.
        scaled = weight.float() * (1 + len(tensors) % 3)
        codes, scales = quantised(scaled, SHAPES[shape])
        tensors[key] = codes
        tensors[key.removesuffix("weight") + "weight_scale"] = scales
        if inputs:
            tensors[key.removesuffix("weight") + "input_scale"] = torch.tensor(0.01)
        values = codes.float() * (scales.reshape(-1, 1) if -1 in SHAPES[shape] else scales)
        narrow = values.bfloat16()  # what fits is packed so, and meets activations of bfloat16
        floats[key] = narrow if torch.equal(narrow.float(), values) else values
    folders = tmp_path / "q", tmp_path / "f"
    for folder, content in zip(folders, (tensors, floats), strict=True):
        config.save_pretrained(folder)
        safetensors.save_file(content, folder / "model.safetensors")
    said = json.loads((folders[0] / "config.json").read_text())
    strategy = "channel" if -1 in SHAPES[shape] else "tensor"
    said["quantization_config"] = settings(strategy)
    (folders[0] / "config.json").write_text(json.dumps(said))

    own, plain = (understand(open_model(folder)) for folder in folders)
    for key, tensor in plain.tensors.items():
        np.testing.assert_array_equal(decode(own.tensors[key]), decode(tensor))
    for backend in ("reference", "cpu"):
        want = logits(folders[1], backend, ids())
        assert error(logits(folders[0], backend, ids()), want) < bound(backend, "fp8")


ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(codes: T) -> T:
    """Nibbles [rows, out] to words [rows, out / 8] as AWQ's ``gemm`` packs them."""
    rows, out = codes.shape
    each = codes.reshape(rows, out // 8, 8).to(torch.int64)[:, :, list(ORDER)]
    packed = sum(each[:, :, i] << 4 * i for i in range(8))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def test_awq_of_an_odd_width_with_zeros_at_both_ends(tmp_path: Path) -> None:
    """256 in, 24 out, groups of 128; zeros of 0 stay 0."""
    torch.manual_seed(9)
    sizes = {**SIZES, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1,
             "head_dim": 24, "intermediate_size": 256, "num_hidden_layers": 1}  # fmt: skip
    config = transformers.LlamaConfig(**sizes)
    model = random_model(config).to(torch.bfloat16)
    tensors: dict[str, T] = {k: v.contiguous() for k, v in model.state_dict().items()}
    want: dict[str, T] = {}
    for key in ("k_proj", "v_proj"):
        stem = f"model.layers.0.self_attn.{key}."
        assert tensors.pop(stem + "weight").shape == (24, 256)
        codes = torch.randint(0, 16, (256, 24))
        zeros = torch.randint(0, 16, (2, 24))
        zeros[0, ::3], zeros[1, ::4] = 0, 15
        scales = (torch.rand(2, 24) * 0.02).half()
        tensors |= {
            stem + "qweight": words(codes),
            stem + "qzeros": words(zeros),
            stem + "scales": scales,
        }
        spread = [each.repeat_interleave(128, 0).float() for each in (zeros, scales)]
        want[f"blk.0.attn_{key[0]}.weight"] = ((codes - spread[0]) * spread[1]).T.numpy()
    config.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128,
                                   "version": "gemm", "zero_point": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    safetensors.save_file(tensors, tmp_path / "model.safetensors")

    checkpoint = understand(open_model(tmp_path))
    for name, values in want.items():
        np.testing.assert_array_equal(decode(checkpoint.tensors[name]), values)
    assert error(logits(tmp_path, "cpu", ids()), logits(tmp_path, "reference", ids())) < 0.04
