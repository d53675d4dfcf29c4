"""Whether a request can be honoured at all: checked before it enters the line."""

from __future__ import annotations

import math

from gristmill.backends.chain import STEPS
from gristmill.errors import ContextError, RequestError
from gristmill.types import Request, SamplingParams

MOST_ANSWERS = 128
MOST_LOGPROBS = 1024
MOST_BEAMS = 64
MOST_STOPS = 1024
INT_MAX = 2**31 - 1


def check_request(request: Request, context: int, vocab: int) -> None:
    """Raise RequestError, with the field that is at fault, unless the engine can serve it."""
    prompt, params = request.prompt, request.sampling
    if not prompt:
        raise RequestError("The prompt is empty; at least one token is needed.", "prompt")
    room = 0 if params.max_tokens == 0 or request.pooling is not None else 1
    if len(prompt) + room > context:
        raise ContextError(len(prompt), context)
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise RequestError(f"The prompt has a token id outside 0 … {vocab - 1}.", "prompt")
    if not 1 <= request.n <= MOST_ANSWERS:
        raise RequestError(f"n is {request.n}; it must be 1 to {MOST_ANSWERS}.", "n")
    if not 0 <= request.beams <= MOST_BEAMS:
        raise RequestError(f"beams is {request.beams}; it must be at most {MOST_BEAMS}.", "n")
    if not -10 <= request.length_penalty <= 10:
        raise RequestError("length_penalty must be between -10 and 10.", "length_penalty")
    _check_numbers(params)
    _check_ids(params, vocab)


def _check_numbers(params: SamplingParams) -> None:
    for name, value, least, most in (
        ("temperature", params.temperature, 0.0, math.inf),
        ("top_k", params.top_k, 0, math.inf),
        ("top_p", params.top_p, 0.0, 1.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("typical_p", params.typical_p, 0.0, 1.0),
        ("repetition_penalty", params.repetition_penalty, 0.0, math.inf),
        ("presence_penalty", params.presence_penalty, -math.inf, math.inf),
        ("frequency_penalty", params.frequency_penalty, -math.inf, math.inf),
        ("repeat_last_n", params.repeat_last_n, -1, math.inf),
        ("max_tokens", params.max_tokens, 0, math.inf),
        ("min_tokens", params.min_tokens, 0, math.inf),
        ("top_n_sigma", params.top_n_sigma, -math.inf, math.inf),
        ("xtc_probability", params.xtc_probability, 0.0, 1.0),
        ("xtc_threshold", params.xtc_threshold, 0.0, 1.0),
        ("dynatemp_range", params.dynatemp_range, -math.inf, math.inf),
        ("dynatemp_exponent", params.dynatemp_exponent, -math.inf, math.inf),
        ("mirostat", params.mirostat, 0, 2),
        ("mirostat_tau", params.mirostat_tau, -math.inf, math.inf),
        ("mirostat_eta", params.mirostat_eta, -math.inf, math.inf),
        ("adaptive_target", params.adaptive_target, -math.inf, 1.0),
        ("adaptive_decay", params.adaptive_decay, 0.0, 1.0),
        ("dry_multiplier", params.dry_multiplier, -math.inf, math.inf),
        ("dry_base", params.dry_base, 0.0, math.inf),
        ("dry_allowed_length", params.dry_allowed_length, 0, INT_MAX),
        ("dry_penalty_last_n", params.dry_penalty_last_n, -1, INT_MAX),
        ("min_keep", params.min_keep, 0, INT_MAX),
        ("logprobs", params.logprobs, 0, MOST_LOGPROBS),
        ("prompt_logprobs", params.prompt_logprobs, 0, MOST_LOGPROBS),
    ):
        if value is None:
            continue
        if not math.isfinite(value) or not least <= value <= most:
            bound = f"at least {least}" if math.isinf(most) else f"{least} to {most}"
            bound = f"at most {most}" if math.isinf(least) else bound
            allowed = "finite" if math.isinf(least) and math.isinf(most) else bound
            raise RequestError(f"{name} is {value}; it must be {allowed}.", name)
    if params.repetition_penalty == 0:
        raise RequestError("repetition_penalty is 0; it must be above 0.", "repetition_penalty")


def _check_ids(params: SamplingParams, vocab: int) -> None:
    for name, ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", [token for token, _ in params.logit_bias]),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", [token for word in params.bad_words for token in word]),
    ):
        for token in ids:
            if not 0 <= token < vocab:
                raise RequestError(f"{name} has the id {token}, outside 0 … {vocab - 1}.", name)
    if any(math.isnan(bias) for _, bias in params.logit_bias):
        raise RequestError("logit_bias has a value that is not a number.", "logit_bias")
    unknown = [name for name in params.samplers or () if name not in STEPS]
    if unknown:
        raise RequestError(f"samplers has {unknown[0][:60]!r}, which is none.", "samplers")
    if len(params.stop) > MOST_STOPS or len(params.stop_token_ids) > MOST_STOPS:
        raise RequestError(f"There are more than {MOST_STOPS} stops.", "stop")
    if not all(params.stop):
        raise RequestError("A stop string is empty.", "stop")
