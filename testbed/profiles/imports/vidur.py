"""Profiling data of Vidur (MLSys 2024): attention.csv and mlp.csv of one model, both needed.

Each has `time_stats.OPERATION.median` in ms for one layer on one GPU. A layer is the sum that Vidur's own
predictor takes: what mlp.csv says for that many tokens (interpolated), the attention kernel, and saving the
new keys and values. Lines with tensor parallelism are not used, as its communication is in other files;
embedding and sampling are not in it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.profiles.cells import printable
from testbed.profiles.imports.lines import Sheet
from testbed.profiles.table import Row

MS_PER_S: Final = 1000.0
ALONE: Final = "num_tensor_parallel_workers"
PER_TOKEN: Final = tuple(
    f"time_stats.{operation}.median"
    for operation in (
        "input_layernorm",
        "attn_pre_proj",
        "attn_rope",
        "attn_post_proj",
        "post_attention_layernorm",
        "mlp_up_proj",
        "mlp_act",
        "mlp_down_proj",
        "add",
    )
)
SAVE: Final = "time_stats.attn_kv_cache_save.median"
PREFILL, DECODE = "time_stats.attn_prefill.median", "time_stats.attn_decode.median"
CALL: Final = ("batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill")
SHAPES: Final = ("n_embd", "n_kv_head")
"""Columns that both files have: of one model they agree."""


def is_attention(sheet: Sheet) -> bool:
    return PREFILL in sheet.header


def rows(attention: Sheet, mlp: Sheet, layers: int) -> list[Row]:
    """The points of a model of `layers` equal layers.

    Raises:
        ScenarioError: missing columns, malformed lines, files of different models, nothing on one GPU.
    """
    attention.require(ALONE, *CALL, PREFILL, DECODE, SAVE)
    mlp.require(ALONE, "num_tokens", *PER_TOKEN)
    _same_model(attention, mlp)
    per_token = _per_token(mlp)
    kernels = _kernels(attention)
    mlp.finish()
    attention.finish()
    for sheet, used in ((mlp, per_token), (attention, kernels)):
        if not used:
            raise ScenarioError(Problem(str(sheet.path), f"no line with {ALONE} 1 to use", "one GPU"))
    lengths = sorted(per_token)
    found: list[Row] = []
    for (is_prefill, batch, tokens), times_s in sorted(kernels.items()):
        computed = tokens if is_prefill else batch
        if not lengths[0] <= computed <= lengths[-1]:
            continue
        layer_s = _between(lengths, per_token, computed) + statistics.median(times_s)
        found.append(
            Row(kind="prefill", tokens=tokens, median_s=layer_s * layers)
            if is_prefill
            else Row(kind="decode", tokens=tokens, batch=batch, median_s=layer_s * layers)
        )
    return found


def _same_model(attention: Sheet, mlp: Sheet) -> None:
    for column in SHAPES:
        values = {line.text(column) for sheet in (attention, mlp) for line in sheet.lines}
        if len(values) > 1:
            found = printable(f"{column} is {', '.join(sorted(values))}")
            raise ScenarioError(Problem(f"{attention.path}, {mlp.path}", found, "files of one model"))


def _per_token(mlp: Sheet) -> dict[int, float]:
    """Seconds of what mlp.csv has of one layer, by the tokens in a step."""
    times_s: dict[int, list[float]] = defaultdict(list)
    for line in mlp.lines:
        if line.integer(ALONE) == 1:
            total_s = sum(line.seconds(column, MS_PER_S) for column in PER_TOKEN)
            times_s[line.integer("num_tokens")].append(total_s)
    return {tokens: statistics.median(times) for tokens, times in times_s.items()}


def _kernels(attention: Sheet) -> dict[tuple[bool, int, int], list[float]]:
    """Seconds of attention by (prefill, batch, tokens): of a prompt, or held before the step."""
    times_s: dict[tuple[bool, int, int], list[float]] = defaultdict(list)
    for line in attention.lines:
        is_prefill, batch = line.truth("is_prefill"), line.integer("batch_size")
        held, chunk = line.integer("kv_cache_size", least=0), line.integer("prefill_chunk_size", least=0)
        if line.integer(ALONE) != 1 or (is_prefill and (held or batch > 1)) or not (is_prefill or held):
            continue
        kernel_s = line.seconds(PREFILL if is_prefill else DECODE, MS_PER_S) + line.seconds(SAVE, MS_PER_S)
        times_s[is_prefill, batch, chunk if is_prefill else held].append(kernel_s)
    return times_s


def _between(lengths: list[int], values: dict[int, float], tokens: int) -> float:
    """Linear between the two lengths around `tokens`, which lies within them."""
    right = bisect_left(lengths, tokens)
    high = lengths[right]
    if high == tokens:
        return values[high]
    low = lengths[right - 1]
    return values[low] + (values[high] - values[low]) * (tokens - low) / (high - low)
