"""CSV files as people write them by hand.

    kind,tokens,seconds[,layer][,batch]       what the project's own table has, in seconds
    tokens,prefill_s                          prefill only
    model,input_len,t_prefill_p50_ms[,...]    prefill of several models, in ms: `model` says which

Other columns are ignored.
"""

from __future__ import annotations

from testbed.errors import Problem, ScenarioError
from testbed.profiles.cells import printable
from testbed.profiles.imports.lines import Line, Sheet
from testbed.profiles.table import Row

MS_PER_S = 1000.0


def rows(sheet: Sheet, model: str) -> list[Row]:
    """The points of the file; of those of several models, `model`'s.

    Raises:
        ScenarioError: another header, a malformed line, or several models and none of this name.
    """
    header = set(sheet.header)
    if {"tokens", "prefill_s"} <= header:
        found = [_prefill(line.integer("tokens"), line.seconds("prefill_s")) for line in sheet.lines]
    elif {"model", "input_len", "t_prefill_p50_ms"} <= header:
        found = [
            _prefill(line.integer("input_len"), line.seconds("t_prefill_p50_ms", MS_PER_S))
            for line in _of_model(sheet, model)
        ]
    else:
        sheet.require("kind", "tokens", "seconds")
        found = [_row(line) for line in sheet.lines]
    sheet.finish()
    return found


def plain_name(model: str) -> str:
    """Kimi-Linear-48B and kimi_linear_48b are the same model: kimi_linear_48b."""
    return model.lower().replace("-", "_").replace(".", "_")


def _prefill(tokens: int, seconds: float) -> Row:
    return Row(kind="prefill", tokens=tokens, median_s=seconds)


def _row(line: Line) -> Row:
    tokens, seconds = line.integer("tokens"), line.seconds("seconds")
    match line.text("kind"):
        case "prefill":
            return _prefill(tokens, seconds)
        case "layer":
            return Row(kind="layer", tokens=tokens, median_s=seconds, layer=line.integer("layer", least=0))
        case "decode":
            return Row(kind="decode", tokens=tokens, median_s=seconds, batch=line.integer("batch"))
    line.refuse("kind", "prefill, layer, decode")
    return _prefill(tokens, seconds)


def _of_model(sheet: Sheet, model: str) -> list[Line]:
    """The lines of one model, however its name is spelt."""
    names = list(dict.fromkeys(line.text("model") for line in sheet.lines))
    wanted = [name for name in names if not model or plain_name(name) == plain_name(model)]
    if len(wanted) != 1:
        found = f"no model {model!r}" if model else f"{len(names)} models"
        problem = Problem(str(sheet.path), found, printable(", ".join(names)), "say which by --model")
        raise ScenarioError(problem)
    return [line for line in sheet.lines if line.text("model") == wanted[0]]
