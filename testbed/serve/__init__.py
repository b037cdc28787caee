"""The control plane: scenarios, runs and their history in a browser, and the same for programs.

    guard ──> api ──> scenarios   what can be run, and whether a text may
                  ──> processes   starts `testbed.run`, tells it to end
                  ──> live        follows journals of runs, many watchers each
                  ──> history     an index of the run directories, which are the truth
                  ──> curves      two runs beside each other
                  ──> exposition  for Prometheus

docs/control-plane.md says how it is used and what it refuses.
"""
