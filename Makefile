# Every target does the set-up that is missing first; done once, that costs a fraction of a second.
.DEFAULT_GOAL := help
.PHONY: help setup run test browser check vm fidelity conformance paper campaign killed bench clean

PYTHON := .venv/bin/python
SCENARIO := scenarios/congestion.yaml
SEEDS := 1-200
KILLS := 50

help: ## show this
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## install what is missing: Debian packages, .venv, the kernel
	@scripts/setup

run: setup ## run a scenario: make run SCENARIO=scenarios/full_rate.yaml
	$(PYTHON) -m testbed.run $(SCENARIO)

check: setup ## formatting, lints, types, import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy testbed agents topologies benchmarks
	.venv/bin/lint-imports

test: check ## check, then every test
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

vm: setup ## build the VM unless it is there, run the smoke scenario and the tests in it (docs/vm.md)
	scripts/vm build
	TESTBED_VM=1 $(PYTHON) -m pytest tests/kernel/test_vm.py tests/kernel/test_vagrant.py

browser: setup ## the control plane in Chromium, and bad input to its API; pictures in build/pictures
	@test -d build/browser || $(PYTHON) -m venv build/browser
	@build/browser/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-browser.lock
	@$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		>$$(build/browser/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	TESTBED_PICTURES=build/pictures build/browser/bin/python -m pytest tests/browser

fidelity: setup ## measure the link in full, write the error table of docs/fidelity.md
	$(PYTHON) -m tests.fidelity.make_table

conformance: setup ## run the same scenarios in every kernel, write the table of docs/fidelity.md
	$(PYTHON) -m testbed.conformance --write docs/fidelity.md

paper: setup ## run the paper's experiments, write the tables of docs/paper.md
	$(PYTHON) -m testbed.paper models --write docs/paper.md
	$(PYTHON) -m testbed.paper table6 --write docs/paper.md
	$(PYTHON) -m testbed.paper wan --write docs/paper.md
	$(PYTHON) -m testbed.paper scenarios --write docs/paper.md

campaign: setup ## run every scenario of scenarios/faults with 200 seeds: make campaign SEEDS=1-20
	$(PYTHON) -m testbed.sweep scenarios/faults --seeds $(SEEDS)

killed: setup ## kill runs at 50 random moments each way, look for what they left: make killed KILLS=10
	KILLS=$(KILLS) $(PYTHON) -m pytest tests/kernel/test_killed.py

bench: setup ## measure how fast it is, write benchmarks/RESULTS.md and results.json
	$(PYTHON) -m benchmarks

clean: ## remove what tools left behind; .venv, runs/ and the kernel stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
	find testbed agents topologies benchmarks scenarios tests -name __pycache__ -prune -exec rm -rf {} +
