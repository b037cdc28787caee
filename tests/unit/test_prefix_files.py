"""Cached prefixes as files: what is read is what was written, whoever wrote it, or nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agents.config import Compute
from agents.kv_layouts import LayerKv, ModelProfile
from agents.prefix_files import LostError, PrefixFiles, ends, room_bytes
from agents.profiles import MODELS
from tests.unit.agent_config import make_config

BLOCK = 512
LAYERS = (LayerKv(2, 0), LayerKv(0, 11), LayerKv(3, 0), LayerKv(4, 0, window_tokens=700))
MIXED = ModelProfile("mixed", "made up", LAYERS)
WHOLE = ModelProfile("whole", "made up", (LAYERS[0], LAYERS[2]))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models, one with full layers only."""
    for one in (MIXED, WHOLE):
        monkeypatch.setitem(MODELS, one.name, one)


def of(directory: Path, model: ModelProfile = MIXED, name: str = "prefill-a1") -> PrefixFiles:
    settings = make_config(name, directory)
    return PrefixFiles(
        msgspec.structs.replace(settings, model=model.name, compute=Compute(seed=1, prefixes=str(directory)))
    )


def kv(model: ModelProfile, tokens: int, last_tokens: int, stamp: int = 0) -> list[bytes]:
    """Of each layer the end of a prompt, every token or state of its own."""
    parts = []
    for layer, one in enumerate(model.layers):
        size = model.end_bytes(layer, last_tokens, tokens)
        if one.kind == "full":
            rows = ((token * 7 + layer + stamp) % 251 for token in range(tokens - last_tokens, tokens))
            parts.append(b"".join(bytes([row]) * one.bytes_per_token for row in rows))
        else:
            parts.append(bytes([(tokens + layer + stamp) % 251]) * size)
        assert len(parts[-1]) == size
    return parts


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("model", [MIXED, WHOLE])
def test_what_is_written_piece_by_piece_is_read_at_any_boundary(tmp_path: Path, model: ModelProfile) -> None:
    """By several instances, from pieces that begin within a block; of any part of the prefix, exactly."""
    chain, tokens = (7, 8, 9), 3 * BLOCK + 100
    one, other = of(tmp_path, model), of(tmp_path, model, "decode-b2")
    one.write_rows(chain, BLOCK + 30, kv(model, BLOCK + 30, BLOCK + 30), BLOCK + 30)
    other.write_rows(chain, tokens, kv(model, tokens, tokens - BLOCK + 60), tokens - BLOCK + 60)
    for blocks in (1, 2, 3):
        length = blocks * BLOCK
        one.write_states(chain, length, dict(enumerate(kv(model, length, 0))))
        for held in range(blocks + 1):
            last = length - held * BLOCK
            assert other.read(chain, length, last) == kv(model, length, last)
            rows = other.read_rows(chain, length, last)
            assert [part for part in rows if part] == [
                part
                for part, layer in zip(kv(model, length, last), model.layers, strict=True)
                if layer.kind == "full" and part
            ]
    assert {path.suffix for path in tmp_path.iterdir()} <= {".rows", ".states"}
    held_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert held_bytes <= room_bytes(model, [(chain, tokens), (chain, tokens)])


@pytest.mark.usefixtures("models")
def test_only_full_blocks_that_came_whole_are_kept(tmp_path: Path) -> None:
    """Neither the tail, nor a block of which the beginning is missing, nor one without an id."""
    files, tokens = of(tmp_path), 4 * BLOCK + 10
    files.write_rows((7, 8, 9), tokens, kv(MIXED, tokens, tokens - 1), tokens - 1)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(LostError, match="cannot be read: No such file"):
        files.read_rows((7, 8, 9), 3 * BLOCK, 3 * BLOCK)
    assert files.read_rows((7, 8, 9), 3 * BLOCK, 2 * BLOCK)[0] == kv(MIXED, 3 * BLOCK, 2 * BLOCK)[0]


@pytest.mark.usefixtures("models")
def test_an_id_behind_other_ids_is_another_block(tmp_path: Path) -> None:
    """A trace that contradicts itself finds nothing, however its numbers are written one after the other."""
    files = of(tmp_path)
    files.write_rows((1, 23), 2 * BLOCK, kv(MIXED, 2 * BLOCK, 2 * BLOCK), 2 * BLOCK)
    for chain in ((12, 3), (2, 23), (1, 2)):
        with pytest.raises(LostError):
            files.read_rows(chain, 2 * BLOCK, BLOCK)
    files.write_rows((2, 23), 2 * BLOCK, kv(MIXED, 2 * BLOCK, 2 * BLOCK, stamp=5), 2 * BLOCK)
    for chain, stamp in (((1, 23), 0), ((2, 23), 5)):
        rows = files.read_rows(chain, 2 * BLOCK, BLOCK)
        assert rows[2] == kv(MIXED, 2 * BLOCK, BLOCK, stamp)[2]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("suffix", ["rows", "states"])
def test_a_file_of_another_size_is_none(tmp_path: Path, suffix: str, change: int) -> None:
    """Shorter or longer, rows or states."""
    files = of(tmp_path)
    files.write_rows((1,), BLOCK, kv(MIXED, BLOCK, BLOCK), BLOCK)
    files.write_states((1,), BLOCK, dict(enumerate(kv(MIXED, BLOCK, 0))))
    assert files.read((1,), BLOCK, BLOCK) == kv(MIXED, BLOCK, BLOCK)
    (path,) = tmp_path.glob(f"*.{suffix}")
    path.write_bytes((path.read_bytes() + b"x")[: path.stat().st_size + change])
    with pytest.raises(LostError, match="bytes, not"):
        files.read((1,), BLOCK, BLOCK)


@pytest.mark.usefixtures("models")
def test_what_there_is_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    """The cause is said; what is there already needs no room."""
    there = tmp_path / "kv"
    there.mkdir()
    files = of(there)
    files.write_rows((1,), BLOCK, kv(MIXED, BLOCK, BLOCK), BLOCK)
    with pytest.MonkeyPatch.context() as patch:

        def full(_path: Path, _data: bytes) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(Path, "write_bytes", full)
        files.write_rows((1,), BLOCK, kv(MIXED, BLOCK, BLOCK), BLOCK)
        with pytest.raises(LostError, match="cannot be kept: No space left"):
            files.write_states((1,), BLOCK, dict(enumerate(kv(MIXED, BLOCK, 0))))
    assert [path.suffix for path in there.iterdir()] == [".rows"]


def test_what_came_is_cut_layer_by_layer() -> None:
    """End to end, windows and states whole."""
    parts = kv(MIXED, 900, 40)
    assert list(map(bytes, ends(MIXED, memoryview(b"".join(parts)), 900, 40))) == parts


def test_room_is_for_each_block_once() -> None:
    """Prompts that share blocks share room, a tail has none, and a prompt leaves two states at most."""
    block, state = BLOCK * MIXED.bytes_per_token, MIXED.fixed_bytes
    alone = room_bytes(MIXED, [((1, 2, 3, 4), 4 * BLOCK + 9)])
    assert room_bytes(MIXED, [((1, 2, 3, 4, 5), 4 * BLOCK + 9)] * 2) == alone + 2 * state
    assert room_bytes(MIXED, [((1, 2, 3, 5), 4 * BLOCK)] * 2 + [((1,), 9)]) == alone + 2 * state
    both = room_bytes(MIXED, [((1, 2, 3, 4), 4 * BLOCK + 9), ((1, 2, 3, 5), 4 * BLOCK)])
    assert both == alone + block + 2 * state
    assert room_bytes(MIXED, [((1,), 9), ((), 4000)]) == 0
