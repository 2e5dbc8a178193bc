# `make` lists the commands. scripts/install.sh installs missing tools. Builds and caches are outside the checkout.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(HOME)/.cache/trust-fabric
export CARGO_TARGET_DIR ?= $(CACHE)/target
export TRUST_FABRIC_PYTHON ?= $(CACHE)/venv/bin/python
export PATH := $(HOME)/.cargo/bin:$(PATH)

# One profile for product and tests, so that RocksDB is compiled once, and always the whole workspace: a single package has
# some dependencies with other features, which would be compiled again.
PROFILE := --release --locked
# Only the tests leave our own crate unoptimised (docs/decisions/2026-11-22-tests-unoptimised.md).
TEST_PROFILE := $(PROFILE) --config 'profile.release.package.trust-fabric.opt-level=0'

# Runs the compose file with the images of scripts/image.sh.
COMPOSE_UP := export PROMETHEUS_IMAGE=trust-fabric-prometheus:dev; \
	if docker compose version >/dev/null 2>&1; then exec docker compose up --no-build; else exec docker-compose up --no-build; fi

# Passed to the development broker: make run RUN_ARGS="--once"
RUN_ARGS ?=

.PHONY: help
help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

.PHONY: checkout
checkout:
	@scripts/checkout.sh

.PHONY: run
run: build ## start a development broker and watch one token exchange
	@exec "$$CARGO_TARGET_DIR/release/trust-fabric" dev $(RUN_ARGS)

.PHONY: build
build: checkout ## compile the product, and the bench beside it
	@scripts/install.sh build
	@test -x "$$CARGO_TARGET_DIR/release/trust-fabric" || \
		echo "First build: RocksDB and some 300 crates are compiled, up to three quarters of an hour on two cores."
	@cargo build --workspace $(PROFILE)

.PHONY: cluster
cluster: build ## run three nodes on this machine, from cluster/, until Ctrl-C
	@exec scripts/cluster.sh

.PHONY: regions-run
regions-run: build ## run two regions of three nodes on this machine, and a link between them, until Ctrl-C
	@exec scripts/regions.sh

.PHONY: image
image: build ## make the container image without a registry, from the program built here
	@scripts/install.sh containers
	@scripts/image.sh

.PHONY: compose
compose: build ## run three nodes and Prometheus in containers, without a registry, until Ctrl-C
	@scripts/install.sh containers
	@scripts/image.sh prometheus
	@$(COMPOSE_UP)

.PHONY: compose-regions
compose-regions: build ## run two regions of three nodes, a link between them and Prometheus in containers, until Ctrl-C
	@scripts/install.sh containers
	@scripts/image.sh bench prometheus
	@export COMPOSE_FILE=docker-compose.regions.yml; $(COMPOSE_UP)

.PHONY: test
test: checkout ## run every test, with the Python oracles
	@scripts/install.sh test
	@cargo nextest run --workspace $(TEST_PROFILE)

.PHONY: breaks
breaks: checkout ## see that the tests find each deliberate break of a promise: docs/proofs/breaks.md (10 minutes)
	@scripts/install.sh test
	@scripts/breaks.py -- $(TEST_PROFILE)

.PHONY: docs
docs: ## build the documentation as a book with search, without network, and check its links
	@scripts/install.sh docs
	@mdbook build --dest-dir "$(CACHE)/book"
	@scripts/links.py --book "$(CACHE)/book"
	@echo "The book is at $(CACHE)/book/index.html"

.PHONY: lint
lint: checkout ## check format, lints, dependencies and links of documents; changes nothing
	@scripts/install.sh lint
	@scripts/links.py
	@scripts/metrics_used.py
	@scripts/reference.py configuration --check
	@cargo fmt --all --check
	@cargo clippy --workspace $(PROFILE) --all-targets -- -D warnings
	@scripts/deny.sh

.PHONY: verify
verify: lint test ## lint and test: what a change must pass; changes nothing

.PHONY: fix
fix: checkout ## format, apply lint suggestions, rewrite the generated pages of docs/
	@scripts/install.sh lint
	@cargo fmt --all
	@cargo clippy --workspace $(PROFILE) --all-targets --fix --allow-dirty --allow-staged
	@TRUST_FABRIC_REWRITE=1 cargo test $(PROFILE) --test house limits_page_equals
	@TRUST_FABRIC_REWRITE=1 cargo test $(PROFILE) --lib metrics_page_equals
	@TRUST_FABRIC_REWRITE=1 cargo test --workspace $(PROFILE) --test generated
	@TRUST_FABRIC_REWRITE=1 cargo test --workspace $(PROFILE) --test driver pages_equal
	@scripts/python-env.sh
	@TRUST_FABRIC_REWRITE=1 cargo test $(PROFILE) --test kubernetes -- recorded alert_rules
	@scripts/reference.py configuration
	@cargo build $(PROFILE) --bin trust-fabric
	@scripts/reference.py cli --program "$$CARGO_TARGET_DIR/release/trust-fabric"

.PHONY: proof
proof: checkout ## run the long proofs: the tests marked `ignore` because they take minutes
	@scripts/install.sh test
	@cargo nextest run --workspace $(PROFILE) --run-ignored only

.PHONY: bare-core
bare-core: checkout ## measure writes of three nodes without HTTP, callers and resources (two minutes and a build)
	@scripts/install.sh build
	@cargo test --workspace $(PROFILE) --lib bare_core -- --ignored --nocapture

.PHONY: nodes
nodes: build ## run three nodes as processes, in containers and as pods of the chart, and kill the leader of each; explain ten denials
	@scripts/install.sh containers
	@scripts/python-env.sh
	@tests/three_nodes.py processes
	@tests/denials_tutorial.py
	@PROMETHEUS_IMAGE=trust-fabric-prometheus:dev scripts/containers.sh \
		sh -c "scripts/image.sh prometheus && tests/three_nodes.py compose && tests/three_nodes.py pods"

.PHONY: regions
regions: build ## run two regions of three nodes, kill leaders and cut the link between them; run the tutorial (2 minutes)
	@tests/two_regions.py processes
	@tests/regions_tutorial.py

.PHONY: regions-containers
regions-containers: build ## the same two regions in containers (3 minutes)
	@scripts/install.sh containers
	@PROMETHEUS_IMAGE=trust-fabric-prometheus:dev scripts/containers.sh \
		sh -c "scripts/image.sh bench prometheus && tests/two_regions.py compose"

.PHONY: upgrade
upgrade: checkout ## upgrade three nodes from the previous feature level under load, back and forth, and finalize
	@scripts/install.sh build
	@cargo build --workspace $(PROFILE) --features trust-fabric/level-0
	@install -D "$$CARGO_TARGET_DIR/release/trust-fabric" "$$CARGO_TARGET_DIR/level-0/trust-fabric"
	@cargo build --workspace $(PROFILE)
	@tests/upgrade.py --old "$$CARGO_TARGET_DIR/level-0/trust-fabric" --new "$$CARGO_TARGET_DIR/release/trust-fabric"

# Rounds of each scenario: make faults FAULTS_ROUNDS=2
FAULTS_ROUNDS ?= 20

.PHONY: faults
faults: build ## wrong clocks, hung disks and old directories under three nodes, 20 rounds of each (two hours)
	@tests/faults.py --rounds $(FAULTS_ROUNDS)

# Directory of runs and results, and further options: make jepsen JEPSEN_ARGS="--seed 7 --nemesis mix"
JEPSEN_RESULTS ?= $(CACHE)/jepsen
JEPSEN_ARGS ?=
JEPSEN = "$$CARGO_TARGET_DIR/release/trust-fabric-jepsen"
JEPSEN_RUN = $(JEPSEN) run --program "$$CARGO_TARGET_DIR/release/trust-fabric" --results "$(JEPSEN_RESULTS)"

.PHONY: jepsen
jepsen: build ## attack three nodes with kills, pauses, partitions, wrong clocks and old directories, and check the history (6 minutes)
	@$(JEPSEN_RUN) --seconds 12 $(JEPSEN_ARGS)

.PHONY: jepsen-regions
jepsen-regions: build ## attack two regions and the link between them, and check what the one accepts of the other (3 minutes)
	@$(JEPSEN) regions --program "$$CARGO_TARGET_DIR/release/trust-fabric" --results "$(JEPSEN_RESULTS)" --rounds 5 $(JEPSEN_ARGS)

# Rounds of each nemesis on three and on five nodes, and of the faults of single machines.
JEPSEN_ROUNDS ?= 10

.PHONY: jepsen-long
jepsen-long: build ## the same with every nemesis, on three and five nodes, and the faults of disks (hours)
	@$(JEPSEN_RUN) --all --seconds 60 --rounds $(JEPSEN_ROUNDS) $(JEPSEN_ARGS)
	@$(JEPSEN_RUN) --all --nodes 5 --seconds 60 --rounds $(JEPSEN_ROUNDS) $(JEPSEN_ARGS)
	@tests/faults.py --rounds $(JEPSEN_ROUNDS) hung-disk set-back cloned-directory
	@for bench in failover resume together race; do "$$CARGO_TARGET_DIR/release/trust-fabric-bench" $$bench \
		--program "$$CARGO_TARGET_DIR/release/trust-fabric" --dir "$(JEPSEN_RESULTS)/bench"; done
	@$(JEPSEN) report --results "$(JEPSEN_RESULTS)"

.PHONY: jepsen-hosts
jepsen-hosts: build ## the faults of jepsen that nodes in network namespaces of their own can have; needs root (5 minutes)
	@$(JEPSEN_RUN) --hosts --seconds 12 $(JEPSEN_ARGS)

.PHONY: jepsen-disks
jepsen-disks: build ## cut the power of one node and of all, on disks of their own that lose what was not synced; needs root (5 minutes)
	@$(JEPSEN_RUN) --disks --seconds 20 --rounds 5 $(JEPSEN_ARGS)

.PHONY: disk-full
disk-full: build ## three nodes on small loop-mounted file systems that run full, under writes; needs root (10 minutes)
	@tests/disk_full.py

# The version of the provider, and its place in a mirror of Terraform's plugins.
PROVIDER_VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' provider/Cargo.toml)
PROVIDER_MIRROR = $(CARGO_TARGET_DIR)/dist/terraform
PROVIDER_PLATFORM = linux_$(subst aarch64,arm64,$(subst x86_64,amd64,$(shell uname -m)))
PROVIDER_PLACE = $(PROVIDER_MIRROR)/registry.example/fabric/svc/$(PROVIDER_VERSION)/$(PROVIDER_PLATFORM)

.PHONY: provider
provider: build ## lay out the Terraform provider as a mirror from which terraform init installs it
	@install -D "$$CARGO_TARGET_DIR/release/terraform-provider-svc" \
		"$(PROVIDER_PLACE)/terraform-provider-svc_v$(PROVIDER_VERSION)"
	@printf '%s\n' "The mirror is $(PROVIDER_MIRROR). In ~/.terraformrc:" "" "  provider_installation {" \
		"    filesystem_mirror {" "      path    = \"$(PROVIDER_MIRROR)\"" "      include = [\"registry.example/*/*\"]" "    }" \
		"    direct {" "      exclude = [\"registry.example/*/*\"]" "    }" "  }"

.PHONY: provider-mirror
provider-mirror: build ## write the Terraform provider as a network mirror, which any web server with HTTPS serves
	@scripts/provider_mirror.py --program "$$CARGO_TARGET_DIR/release/terraform-provider-svc" \
		--version "$(PROVIDER_VERSION)" --platform $(PROVIDER_PLATFORM) "$(CARGO_TARGET_DIR)/dist/terraform-network"

.PHONY: terraform
terraform: provider provider-mirror ## run the real Terraform, if it is on PATH, with the provider against three nodes (2 minutes)
	@provider/tests/terraform.py --mirror "$(PROVIDER_MIRROR)"
	@provider/tests/terraform_network.py --mirror "$(CARGO_TARGET_DIR)/dist/terraform-network"

.PHONY: dist
dist: checkout ## build the program with optimization at link time, and make a tarball and a Debian package of it (25 minutes)
	@scripts/install.sh build
	@scripts/install.sh dist
	@cargo build --profile shipped --locked --bin trust-fabric
	@scripts/dist.sh

.PHONY: dist-test
dist-test: dist ## install, start, upgrade and remove the package on a clean root; needs root and a Debian mirror
	@scripts/install.sh dist-test
	@scripts/dist_test.sh "$$CARGO_TARGET_DIR"/dist/*.deb

.PHONY: attack
attack: build ## attack a node of this build over the wire while a good client goes on (2 minutes)
	@scripts/bench.sh attacks

.PHONY: bench
bench: build ## load, verifications, 50 000 tools, signals in and out, 500 000 revocations; for a quiet machine (15 minutes)
	@scripts/bench.sh connections overload exchange verify "tools --tools 50000 --seconds 2" \
		signals "streams --events 10000 --seconds 5" "feed --seconds 5" \
		"revocations --revocations 500000 --seconds 1"

.PHONY: clean
clean: ## remove builds and the Python environment; broker data stays
	@rm -rf "$$CARGO_TARGET_DIR" "$(CACHE)/venv"
