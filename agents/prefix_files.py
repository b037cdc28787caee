"""Cached prefixes as bytes: files in memory that the instances of a cluster share, for real kernels.

The books of `agents.cache` say which prefixes are where; here is what they hold. A block is a file with the
rows of its tokens of every full layer. The states and windows of the other layers behind a block are another
file. Files appear whole or not at all, never change and are never deleted: what the books have evicted is not
asked for any more.

A file's name follows from the ids of all blocks up to its own, so whoever says the same ids must mean the
same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count, pairwise
from pathlib import Path

import msgspec
from xxhash import xxh3_128

from agents import config
from agents.cache.pool import BLOCK_TOKENS
from agents.profiles import MODELS, ModelProfile

Bytes = bytes | bytearray | memoryview
STATES_PER_PROMPT = 2
"""At most, see `agents.cache.pool.Pool.reserve`."""
SLACK_BYTES = 4 << 20
"""For what is being written, and for pages that are not full."""


class Reuse(msgspec.Struct, frozen=True):
    """What a prompt has to do with cached prefixes; `chain` are the ids of its full blocks.

    It starts behind `cached_tokens`, whole blocks, and leaves states behind as many as `state_tokens`.
    """

    chain: tuple[int, ...]
    cached_tokens: int
    state_tokens: tuple[int, ...]


NO_REUSE = Reuse((), 0, ())


class LostError(Exception):
    """A prefix cannot be read as the books have it, or cannot be kept."""


class PrefixFiles:
    """What one instance reads and writes of its cluster's files, in `settings.compute.prefixes`.

    Lengths are in tokens of a prompt whose blocks are `chain`. Of a layer's bytes for the last so many tokens
    see `ModelProfile.end_bytes`: states and windows are whole.
    """

    def __init__(self, settings: config.Config) -> None:
        assert settings.compute is not None
        self._directory, self._me = Path(settings.compute.prefixes), settings.name
        self._model = MODELS[settings.model]
        self._full = [layer for layer, kv in enumerate(self._model.layers) if kv.kind == "full"]
        self._others = [layer for layer, kv in enumerate(self._model.layers) if kv.kind != "full"]
        self._written = count()

    def read(self, chain: Sequence[int], tokens: int, last_tokens: int) -> list[bytes]:
        """Of each layer the bytes of the last so many of the first `tokens`, which are whole blocks.

        Raises:
            LostError: a file is missing, or has another size.
        """
        parts = self.read_rows(chain, tokens, last_tokens)
        if self._others:
            name = f"{_names(chain)[tokens // BLOCK_TOKENS - 1]}.states"
            sizes = [self._model.layers[layer].size_bytes(tokens) for layer in self._others]
            states = _cut(self._read(name, sum(sizes)), sizes)
            for layer, part in zip(self._others, states, strict=True):
                parts[layer] = bytes(part)
        return parts

    def read_rows(self, chain: Sequence[int], tokens: int, last_tokens: int) -> list[bytes]:
        """The same of full layers; nothing of others. Raises as `read`."""
        first = (tokens - last_tokens) // BLOCK_TOKENS
        rows = [b""] * len(self._model.layers)
        sizes = [self._model.layers[layer].size_bytes(BLOCK_TOKENS) for layer in self._full]
        blocks = [
            _cut(self._read(f"{name}.rows", sum(sizes)), sizes)
            for name in _names(chain)[first : tokens // BLOCK_TOKENS]
        ]
        for layer, column in zip(self._full, zip(*blocks, strict=True), strict=False):
            rows[layer] = b"".join(column)
        return rows

    def write_rows(self, chain: Sequence[int], tokens: int, ends: Sequence[Bytes], last_tokens: int) -> None:
        """Keep the full blocks that lie within the last so many of `tokens`, of which `ends` has the bytes,
        layer by layer.

        Raises:
            LostError: there is no room.
        """
        names, blocks = _names(chain), min(len(chain), tokens // BLOCK_TOKENS)
        start = tokens - last_tokens
        for block in range(-(-start // BLOCK_TOKENS), blocks):
            offset = block * BLOCK_TOKENS - start
            self._write(f"{names[block]}.rows", self._block(ends, offset))

    def _block(self, ends: Sequence[Bytes], offset_tokens: int) -> Iterator[memoryview]:
        for layer in self._full:
            row_bytes = self._model.layers[layer].bytes_per_token
            view = memoryview(ends[layer])
            yield view[offset_tokens * row_bytes : (offset_tokens + BLOCK_TOKENS) * row_bytes]

    def write_states(self, chain: Sequence[int], tokens: int, ends: Mapping[int, Bytes]) -> None:
        """Keep states and windows behind the first `tokens`, whole blocks; `ends` has them by layer.

        Raises:
            LostError: there is no room.
        """
        if self._others:
            name = f"{_names(chain)[tokens // BLOCK_TOKENS - 1]}.states"
            self._write(name, (ends[layer] for layer in self._others))

    def _read(self, name: str, size_bytes: int) -> memoryview:
        try:
            data = (self._directory / name).read_bytes()
        except OSError as error:
            raise LostError(f"a cached prefix cannot be read: {error.strerror}: {name}") from error
        if len(data) != size_bytes:
            raise LostError(f"a cached prefix has {len(data)} bytes, not {size_bytes}: {name}")
        return memoryview(data)

    def _write(self, name: str, parts: Iterable[Bytes]) -> None:
        """Put a file there, unless it is there: whoever wrote it had the same prefix."""
        path = self._directory / name
        if path.exists():
            return
        # Of its own: process ids are the same in every container, and this may be called in two threads.
        part = self._directory / f"{self._me}.{next(self._written)}.part"
        try:
            part.write_bytes(b"".join(parts))
            part.rename(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise LostError(f"a prefix cannot be kept: {error.strerror}") from error


def ends(model: ModelProfile, kv: memoryview, tokens: int, last_tokens: int) -> list[memoryview]:
    """What has come of a prompt's last so many tokens, layer by layer."""
    layers = range(len(model.layers))
    parts = _cut(kv, [model.end_bytes(layer, last_tokens, tokens) for layer in layers])
    assert sum(map(len, parts)) == len(kv)
    return parts


def room_bytes(model: ModelProfile, chains: Iterable[tuple[Sequence[int], int]]) -> int:
    """The most that the files of one cluster can take after prompts of such chains and lengths in tokens."""
    blocks, prompts = set[str](), 0
    for chain, tokens in chains:
        names = _names(chain[: tokens // BLOCK_TOKENS])
        blocks.update(names)
        prompts += bool(names)
    states = min(STATES_PER_PROMPT * prompts, len(blocks))
    held_bytes = len(blocks) * BLOCK_TOKENS * model.bytes_per_token + states * model.fixed_bytes
    return held_bytes + SLACK_BYTES if blocks else 0


def _names(chain: Sequence[int]) -> list[str]:
    """Of each block: over the ids up to its own, as a file name. Ids may be any numbers."""
    digest, names = xxh3_128(), list[str]()
    for block in chain:
        digest.update(f"{block}/".encode())
        names.append(digest.hexdigest())
    return names


def _cut(data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Pieces of these sizes, end to end."""
    return [data[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
