"""What the answers should be: every request's prompt and answer by one process, with nothing in between.

It computes one request after the other, notes each answer, and ends.
"""

from __future__ import annotations

import time

from agents import config
from agents.compute.engine import Answer, Kernels
from agents.journal import Journal
from agents.prompts import prompt


def main() -> None:
    """The program."""
    settings = config.from_arguments()
    kernels, journal = Kernels(settings), Journal(settings.journal)
    for request in settings.requests:
        computed = kernels.prompt(prompt(settings, request), request.input_tokens)
        computed.compute(range(len(kernels.model.shape.layers)))
        answer = Answer(computed.cache)
        for _ in range(request.output_tokens):
            kernels.step([answer])
        journal.note(
            "reference",
            time.monotonic_ns(),
            id=request.id,
            token_ids=answer.token_ids,
            logits_digest=answer.logits_digest,
        )
    journal.close()
    print("done", flush=True)
