"""Write what llama.cpp predicts for ``text.txt``: the vectors beside this script.

    pip install xllamacpp==2026.10.11549 numpy
    python make_llamacpp_logits.py MODEL.gguf OUT.npz [--top 16] [--threads 2]

llama.cpp comes prebuilt in the ``xllamacpp`` wheel, whose shared library exports llama.cpp's C
API; it is called here with ``ctypes``. The two parameter structs are passed by value, so their
layout belongs to that version; defaults are compared before anything else is done.

The file's text is one sequence, tokenised by llama.cpp with its special tokens added, every
token fed as it stands (teacher forcing), everything else at llama.cpp's defaults (f16 KV).

OUT.npz: ``ids`` int32 [T]; ``top_ids`` uint16 or uint32 [T, top] and ``top_logprobs`` float16
[T, top], the best after each token, best first; ``next_logprobs`` float32 [T − 1], of the token
that follows; ``exact_top`` [T] and ``exact_next_logprobs`` [T − 1], the best token and the next
one's log-probability when llama.cpp runs with f32 KV and without flash attention: where the best
differs, llama.cpp does not agree with itself, and a near tie is decided by rounding; ``source``
text: versions and model. Log-probabilities are natural logs, of float64 sums over the whole
vocabulary.
"""

from __future__ import annotations

import argparse
import ctypes as c
import hashlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xllamacpp  # pyright: ignore[reportMissingImports]

CHUNK = 128
"""Tokens decoded at once; their logits are all in memory."""


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class ModelParams(c.Structure):
    """llama_model_params."""

    _fields_ = [
        *_fields(c.c_void_p, "devices buffer_overrides"),
        *_fields(c.c_int32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
        *_fields(c.c_void_p, "tensor_split progress progress_data kv_overrides"),
        *_fields(c.c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
        ("spare", c.c_uint8 * 64),
    ]


class ContextParams(c.Structure):
    """llama_context_params."""

    _fields_ = [
        *_fields(c.c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max"),
        *_fields(c.c_uint32, "n_outputs_max_per_seq"),
        *_fields(c.c_int32, "n_threads n_threads_batch ctx_type rope_scaling_type pooling_type"),
        *_fields(c.c_int32, "attention_type flash_attn_type"),
        *_fields(c.c_float, "rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor"),
        *_fields(c.c_float, "yarn_beta_fast yarn_beta_slow"),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        *_fields(c.c_void_p, "eval eval_data"),
        *_fields(c.c_int32, "type_k type_v"),
        *_fields(c.c_void_p, "abort abort_data unnamed"),
        *_fields(c.c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        ("spare", c.c_uint8 * 128),
    ]


class Batch(c.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


def library() -> c.CDLL:
    """llama.cpp, its functions declared and its parameters' layout checked."""
    lib = c.CDLL(str(next(Path(xllamacpp.__path__[0]).glob("*.so"))))
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_context_default_params.restype = ContextParams
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab"):
        getattr(lib, name).restype = c.c_void_p
    lib.llama_model_load_from_file.argtypes = [c.c_char_p, ModelParams]
    lib.llama_init_from_model.argtypes = [c.c_void_p, ContextParams]
    lib.llama_model_get_vocab.argtypes = [c.c_void_p]
    lib.llama_vocab_n_tokens.argtypes = [c.c_void_p]
    lib.llama_batch_init.restype = Batch
    lib.llama_decode.argtypes = [c.c_void_p, Batch]
    lib.llama_get_logits_ith.restype = c.POINTER(c.c_float)
    lib.llama_get_logits_ith.argtypes = [c.c_void_p, c.c_int32]
    lib.llama_tokenize.argtypes = [
        c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool,
    ]  # fmt: skip
    lib.llama_backend_init()
    model, context = lib.llama_model_default_params(), lib.llama_context_default_params()
    expected = [
        (model, {"n_gpu_layers": -1, "load_mode": -1, "main_gpu": 0, "use_extra_bufts": True}),
        (context, {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1}),
        (context, {"rope_scaling_type": -1, "yarn_beta_slow": -1.0, "type_k": 1, "type_v": 1}),
        (context, {"embeddings": False, "no_perf": True, "swa_full": True, "kv_unified": False}),
    ]
    for struct, values in expected:
        for name, value in values.items():
            if getattr(struct, name) != value:
                raise SystemExit(f"{name} is {getattr(struct, name)}: another llama.cpp's layout")
    return lib


class LlamaCpp:
    """One model, one sequence."""

    def __init__(self, path: Path, threads: int, exact: bool) -> None:
        self.lib = library()
        model_params = self.lib.llama_model_default_params()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), model_params)
        params = self.lib.llama_context_default_params()
        params.n_ctx = 8192
        params.n_outputs_max = params.n_outputs_max_per_seq = CHUNK
        params.n_threads = params.n_threads_batch = threads
        if exact:
            params.flash_attn_type = params.type_k = params.type_v = 0
        self.context = self.lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot open {path}")
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        self.batch = self.lib.llama_batch_init(CHUNK, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        """Ids with the model's special tokens added; none are parsed from the text."""
        data = text.encode()
        ids = (c.c_int32 * (len(data) + 8))()
        n = self.lib.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:n])

    def logprobs(self, ids: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Chunk by chunk its start and the log-probabilities float64 [tokens, vocab] after it."""
        for start in range(0, len(ids), CHUNK):
            rows = self._logits(ids[start : start + CHUNK], start).astype(np.float64)
            rows -= rows.max(-1, keepdims=True)
            yield start, rows - np.log(np.exp(rows).sum(-1, keepdims=True))

    def _logits(self, ids: list[int], start: int) -> np.ndarray:
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i] = token, start + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, 0, 1
        if self.lib.llama_decode(self.context, self.batch):
            raise SystemExit("llama.cpp could not decode")
        rows = [self.lib.llama_get_logits_ith(self.context, i) for i in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])

    def close(self) -> None:
        """Free the model."""
        self.lib.llama_free(c.c_void_p(self.context))
        self.lib.llama_model_free(c.c_void_p(self.model))


def main() -> None:
    """Write one model's vectors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--top", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, help="only the first of the text")
    args = parser.parse_args()
    text = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
    llama = LlamaCpp(args.model, args.threads, exact=False)
    ids = llama.tokenize(text)[: args.tokens]
    top_ids: list[np.ndarray] = []
    top: list[np.ndarray] = []
    following: list[np.ndarray] = []
    for start, rows in llama.logprobs(ids):
        best = np.argpartition(-rows, args.top, axis=-1)[:, : args.top]
        order = np.argsort(-np.take_along_axis(rows, best, -1), axis=-1, kind="stable")
        best = np.take_along_axis(best, order, -1)
        top_ids.append(best)
        top.append(np.take_along_axis(rows, best, -1))
        after = ids[start + 1 : start + 1 + len(rows)]
        following.append(rows[np.arange(len(after)), after])
    llama.close()
    llama = LlamaCpp(args.model, args.threads, exact=True)
    exact_top: list[np.ndarray] = []
    exact_following: list[np.ndarray] = []
    for start, rows in llama.logprobs(ids):
        exact_top.append(rows.argmax(-1))
        after = ids[start + 1 : start + 1 + len(rows)]
        exact_following.append(rows[np.arange(len(after)), after])
    small = np.uint16 if llama.n_vocab < 65536 else np.uint32
    digest = hashlib.sha256(args.model.read_bytes()).hexdigest()
    version = importlib.metadata.version("xllamacpp")
    np.savez_compressed(
        args.out,
        ids=np.array(ids, np.int32),
        top_ids=np.concatenate(top_ids).astype(small),
        exact_top=np.concatenate(exact_top).astype(small),
        top_logprobs=np.concatenate(top).astype(np.float16),
        next_logprobs=np.concatenate(following).astype(np.float32),
        exact_next_logprobs=np.concatenate(exact_following).astype(np.float32),
        source=f"xllamacpp {version}, {args.model.name}, sha256 {digest}",
    )
    print(len(ids), "tokens, perplexity", np.exp(-np.concatenate(following).mean()))


if __name__ == "__main__":
    main()
