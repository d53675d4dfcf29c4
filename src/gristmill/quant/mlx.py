"""MLX's affine codes of 2, 3, 4, 5, 6 or 8 bits: "mlx". w = scale·code + low.

parts: codes u32 (N, K·bits/32), lowest bits first, running on into the next word; scales and lows
(``biases`` in the file) (N, K/group). settings: bits, group.
(Its modes mxfp4, mxfp8 and nvfp4 are mxfp4_hf, fp8 and nvfp4_hf.)
"""

from __future__ import annotations

from gristmill.errors import FormatError
from gristmill.quant.composite import (
    FLOATS,
    Codes,
    Composite,
    expect,
    finite,
    floats,
    part,
    scale_type,
    setting,
    unpack_low_first,
    words,
)
from gristmill.types import RawTensor


def _check(tensor: RawTensor) -> None:
    n, k = tensor.shape
    bits = setting(tensor, "bits", 2, 8)
    group = setting(tensor, "group", 1, k)
    if bits == 7 or k * bits % 32 or k % group:
        raise FormatError(
            f"Tensor '{tensor.name}' in mlx: {k} inputs in groups of {group} with {bits} bits "
            "cannot be."
        )
    expect(tensor, "codes", ("u32",), (n, k * bits // 32))
    scales = expect(tensor, "scales", FLOATS, (n, k // group))
    expect(tensor, "lows", (scales.encoding,), (n, k // group))


def _codes(tensor: RawTensor, start: int, stop: int) -> Codes:
    bits = setting(tensor, "bits", 2, 8)
    scales = part(tensor, "scales")
    return Codes(
        unpack_low_first(words(part(tensor, "codes"))[start:stop], bits, tensor.shape[1]),
        bits,
        setting(tensor, "group", 1, tensor.shape[1]),
        finite(tensor, "scales", floats(scales)[start:stop]),
        scale_type(scales),
        low=finite(tensor, "lows", floats(part(tensor, "lows"))[start:stop]),
    )


COMPOSITES = (Composite("mlx", _check, _codes),)
