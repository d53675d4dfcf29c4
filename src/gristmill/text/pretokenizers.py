r"""How BPE vocabularies cut text into words before merging: one rule per ``tokenizer.ggml.pre``.

The names are GGUF's; the expressions are those of each model's own ``tokenizer.json`` or
training code, in Oniguruma's syntax (what the ``tokenizers`` library speaks). A rule is a list
of expressions applied in turn; each isolates what it matches inside the pieces left so far,
and what nothing matches stays a piece.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A named rule. ``kind`` "bytes" spells text in GPT-2's byte alphabet before merging,
    "gemma4" and "spaces" (as Gemma 4, but without its special handling of newlines) write a
    space as U+2581 and merge raw characters, "words" drops white space and merges raw characters.

    ``ignore_merges``: a word that is a token as a whole is that token, merges or not.
    """

    name: str
    patterns: tuple[str, ...]
    kind: str = "bytes"
    ignore_merges: bool = False
    add_bos: bool = False
    add_sep: bool = False


_SHORT = "'s|'t|'re|'ve|'m|'ll|'d"
_SHORT_ANY = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

_GPT2 = _SHORT + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _llama3(numbers: str = r"\p{N}{1,3}", short: str = _SHORT_ANY + "|", tail: str = "") -> str:
    """The family of cl100k: contractions, words, numbers, symbols, line ends, white space."""
    return (
        short
        + r"[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        + (tail or r"\s+(?!\S)|\s+")
    )


def _o200k(numbers: str, short: str = _SHORT_ANY + "?", not_han: str = "", line: str = "/") -> str:
    """The family of o200k: words are cut where lower case turns into upper case."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{not_han}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{not_han}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{lead}{upper}*{lower}+{short}|{lead}{upper}+{lower}*{short}|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n{line}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _deepseek_words(symbols_end: str = r"[\r\n]*", lines: str = r"\s*[\r\n]+") -> str:
    return (
        _PUNCTUATION_ASCII
        + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
        + symbols_end
        + f"|{lines}"
        + r"|\s+(?!\S)|\s+"
    )


_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DIGITS_FROM_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINES = r"[^\n]+|[\n]+"

# The letters that DeepSeek's first tokenizer names one by one (cased letters of Unicode 10), and
# the scripts without spaces that AFMoE isolates. Code points in hexadecimal.
_DEEPSEEK_LETTERS = (
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f "
    "386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd "
    "1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 "
    "1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 "
    "2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 "
    "2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 "
    "a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 "
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943 "
)
_AFMOE_SCRIPTS = (
    "4e00-9fff 3400-4dbf f900-faff 3040-30ff ff65-ff9f 2f00-2fdf e00-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)


def _class(ranges: str) -> str:
    """The inside of a character class from hexadecimal ranges."""
    return "".join("-".join(chr(int(x, 16)) for x in r.split("-")) for r in ranges.split())


_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
)
_JAIS2_SPACES = "|".join(
    [rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)] + [r"\s{1,2}(?!\S)", r"\s{1}"]
)

_RULES: list[tuple[str, tuple[str, ...], dict[str, object]]] = [
    ("gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum", (_GPT2,), {}),
    ("modern-bert exaone4 mpt olmo jais trillion granite-docling", (_GPT2,), {}),
    ("jina-v1-en jina-v2-code roberta-bpe", (_GPT2,), {"add_sep": True}),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
     (r"\p{N}", _GPT2), {}),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     (_llama3(),), {"ignore_merges": True, "add_bos": True}),
    ("dbrx smaug-bpe chatglm-bpe", (_llama3(),), {}),
    ("glm4 glm5", (_llama3(),), {"ignore_merges": True}),
    ("jais-2", (_llama3(tail=_JAIS2_SPACES),), {}),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
     (_llama3(r"\p{N}"),), {}),
    ("ufakzeka", (_llama3(r"\p{N}", short=""),), {}),
    ("minicpm5", (r"\p{N}{1,3}", _llama3(r"\p{N}+")), {"ignore_merges": True}),
    ("laguna", (_LINES, _llama3(r"\p{N}")), {}),
    ("qwen35",
     (_SHORT_ANY + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
      r"|\s*[\r\n]+|\s+(?!\S)|\s+",), {}),
    ("seed-coder",
     (_SHORT_ANY + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
      r"|\s+(?!\S)|\s+",), {}),
    ("bailingmoe bailingmoe2 llada-moe",
     ("'(?i:[sdmt]|ll|ve|re)|" +
      r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",),
     {}),
    ("exaone-moe",
     (_SHORT_ANY + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
      r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",), {}),
    ("tekken", (_o200k(r"\p{N}", short=""),), {"ignore_merges": True, "add_bos": True}),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", (_o200k(r"\p{N}{1,3}"),), {}),
    ("granite-embed-multi-97m", (_o200k(r"\p{N}{1,3}"),), {"ignore_merges": True}),
    ("tiny_aya cohere2moe", (r"\d{1,3}(?=(?:\d{3})*\b)", _o200k(r"\p{N}{1,3}")), {}),
    ("kimi-k2",
     (r"[\p{Han}]+|" + _o200k(r"\p{N}{1,3}", not_han=r"&&[^\p{Han}]", line=""),), {}),
    ("youtu",
     (_YOUTU_SCRIPTS, _o200k(r"\p{N}")),
     {"ignore_merges": True}),
    ("superbpe", (r"\p{N}+", r"(?=(\d{3})+(?!\d))"), {}),
    ("deepseek-llm",
     (r"[\r\n]", rf"\s?[{_class(_DEEPSEEK_LETTERS)}]+", _DEEPSEEK_SIGNS, r"\s+$",
      _DEEPSEEK_ASIAN, r"\p{N}+"), {}),
    ("deepseek-coder",
     (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, r"\p{N}"), {}),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     (r"\p{N}{1,3}", _DEEPSEEK_CJK, _deepseek_words()), {}),
    ("spark2_5",
     (r"\p{N}{1,3}", _DEEPSEEK_CJK, _deepseek_words("", r"[\r\n]"), r"\p{N}"), {}),
    ("afmoe", (_DIGITS_FROM_RIGHT, f"[{_class(_AFMOE_SCRIPTS)}]+", _deepseek_words()), {}),
    ("falcon",
     (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2.removesuffix(r"|\s+"), "[0-9][0-9][0-9]"), {}),
    ("default",
     (r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]"), {}),
    ("poro-chat bloom gpt3-finnish", (_BLOOM,), {}),
    ("viking", (_BLOOM, r"\p{N}"), {}),
    ("chameleon",
     (r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )",
      r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2), {"add_bos": True}),
    ("gemma4 granite-embed-multi-311m", (_LINES,), {"kind": "gemma4"}),
    ("sarvam-moe", (_LINES,), {"kind": "spaces"}),
    ("whitespace", (r"\S+",), {"kind": "words"}),
]  # fmt: skip

NAMES: dict[str, PreTokenizer] = {
    name: PreTokenizer(name, patterns, **options)  # type: ignore[arg-type]
    for names, patterns, options in _RULES
    for name in names.split()
}
"""Every known name."""


def find(name: str) -> PreTokenizer:
    """The rule called ``name``. Raises UnsupportedError that lists the known names."""
    rule = NAMES.get(name)
    if rule is None:
        raise UnsupportedError(
            f"The model's pre-tokenizer is '{name[:100]}'; known are {', '.join(sorted(NAMES))}."
        )
    return rule
