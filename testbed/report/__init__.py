"""The report: one self-contained page per run, made from the record. `page.write` is all there is to it."""
