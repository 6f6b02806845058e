# make         bin/bloat, for this machine
# make test    what a change must pass: formatting, vet, all tests under the race detector
# make bench   all benchmarks; the cost of a byte beside iperf3's and the program's memory (docs/load.md); and the tables of accuracy behind shaped kernel
#              links, in the lab and of docs/statistics.md (takes root and an hour)
# make demo    a bloated link and the same link with fq_codel, emulated: no server, no root, no network
# make pictures  the pictures of docs/pictures.md, anew
# make seeds   the tables of docs/lab.md, anew: queues compared on emulated links, in virtual time (takes two minutes)
# make fuzz    every fuzz target for FUZZTIME
# make speedtest  bin/speedtest, the small program for routers, for this machine (docs/router.md)
# make release    archives of both programs for all machines, with their sums, in bin/release (takes half an hour)
# make sizes      the budgets of the small program, and that releases are the same each time
# make emulated   the small program on other machines, by QEMU
# make man     manual pages and completions of shells, in bin/share
# make deb     Debian packages of the program and of the server, in bin/deb; DEB_ARCH=arm64 and the like for other machines (docs/packaging.md)
# make package-test  installs them into a Debian made for it, as root, and looks at what they do (takes minutes, and a mirror of Debian)
# make clean

GO       ?= go
FUZZTIME ?= 10s

# The newest version tag and the way from it; without tags the commit; without git the newest version in the changelog.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || sed -n 's/^## \[\{0,1\}\([0-9][^] ]*\).*/\1/p' CHANGELOG.md | head -n 1)
LDFLAGS  = -s -w -X main.version=$(or $(VERSION),unreleased)

# The time of what is packaged is that of the commit, and without git that of the changelog.
SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),$(shell date -r CHANGELOG.md +%s))

# Debian's name of the architecture, and how Go builds for it.
DEB_ARCH       ?= $(or $(shell dpkg --print-architecture 2>/dev/null),amd64)
DEB_GO_amd64    = GOARCH=amd64
DEB_GO_arm64    = GOARCH=arm64
DEB_GO_armhf    = GOARCH=arm GOARM=7
DEB_GO_armel    = GOARCH=arm GOARM=5
DEB_GO_i386     = GOARCH=386
DEB_GO_mips64el = GOARCH=mips64le
DEB_GO_ppc64el  = GOARCH=ppc64le
DEB_GO_riscv64  = GOARCH=riscv64
DEB_GO_loong64  = GOARCH=loong64
DEB_GO_s390x    = GOARCH=s390x

.PHONY: all speedtest release sizes emulated test check bench demo pictures seeds fuzz man deb package-test version clean

# The same commit gives the same bytes: no paths, no time, no C compiler.
all:
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/bloat ./cmd/bloat

speedtest:
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/speedtest ./cmd/speedtest

release:
	GO=$(GO) packaging/release bin/release '$(or $(VERSION),unreleased)' $(SOURCE_DATE_EPOCH)

sizes:
	BLOAT_RELEASE=1 $(GO) test -count=1 -timeout 20m -run 'FitsItsBudgets|ReleasesAreReproducible' ./packaging

emulated:
	BLOAT_EMULATED=1 $(GO) test -count=1 -timeout 20m -run 'OtherMachines|WireFormats' ./cmd/speedtest

# The emulated link in virtual time is some fifty times slower under the race detector. Tests that take too long there skip themselves
# with -short, and their packages are tested once more without it. internal/acceptance runs the program in processes of its own, in real time,
# where the race detector sees nothing: it is tested without it alone.
ACCEPTANCE = ./internal/acceptance

test: check
	CGO_ENABLED=1 $(GO) test -race -short -p 4 -timeout 300s $$($(GO) list ./... | grep -v '/internal/acceptance$$')
	@slow=$$(grep -rlF --include='*_test.go' 'testing.Short()' . | xargs -r -n 1 dirname | sort -u | grep -v '^$(ACCEPTANCE)$$'); \
	echo $(GO) test -timeout 300s -parallel 4 $(ACCEPTANCE) $$slow; $(GO) test -timeout 300s -parallel 4 $(ACCEPTANCE) $$slow

check:
	@files=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$files" ]; then echo "gofmt would change:"; echo "$$files"; exit 1; fi
	$(GO) vet ./...

bench:
	$(GO) test -run '^$$' -bench . -benchmem -timeout 20m ./...
	BLOAT_SPEED=1 $(GO) test -count=1 -v -timeout 10m -run '^TestSpeed' ./cmd/bloat
	BLOAT_BENCH=10 $(GO) test -count=1 -v -timeout 20m -run '^TestSpeedBesideIperf3$$' ./internal/acceptance
	BLOAT_MEMORY=1 $(GO) test -count=1 -v -timeout 20m -run '^TestTheProgramsMemoryHasBounds$$' ./internal/acceptance
	BLOAT_ACCURACY=1 $(GO) test -count=1 -v -p 1 -timeout 30m -run '^TestAccuracy' ./internal/acceptance ./servers/lab/kernel
	BLOAT_SIMULATE=1 $(GO) test -count=1 -v -p 1 -timeout 30m -run '^TestSimulate' ./report/stat ./report/compare

demo: all
	bin/bloat speedtest --lab fifo --virtual -o bin/demo.bloat.json.gz
	bin/bloat speedtest --lab fq_codel --virtual --against bin/demo.bloat.json.gz

# Runs in virtual time: the same pictures each time.
pictures:
	$(GO) test -count=1 ./cmd/bloat -run '^TestThePicturesOfTheDocs' -update

seeds:
	BLOAT_SEEDS=1 $(GO) test -count=1 -timeout 20m -run '^TestSeeds$$' ./servers/lab

fuzz:
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file func; do \
		dir=$$(dirname "$$file"); name=$${func#func }; echo "$$dir: $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" || exit 1; \
	done

man: all
	rm -rf bin/share
	bin/bloat man --date "$$(date -u -d @$(SOURCE_DATE_EPOCH) +%F 2>/dev/null || date -u -r $(SOURCE_DATE_EPOCH) +%F)" bin/share/man
	mkdir -p bin/share/completions
	bin/bloat completion bash >bin/share/completions/bloat.bash
	bin/bloat completion zsh >bin/share/completions/_bloat
	bin/bloat completion fish >bin/share/completions/bloat.fish
	bin/bloat completion powershell >bin/share/completions/bloat.ps1

deb: man
	@test -n "$(DEB_GO_$(DEB_ARCH))" || { echo "no build for Debian's architecture $(DEB_ARCH) is known"; exit 1; }
	mkdir -p bin/deb
	CGO_ENABLED=0 GOOS=linux $(DEB_GO_$(DEB_ARCH)) $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/deb/bloat-$(DEB_ARCH) ./cmd/bloat
	GO=$(GO) packaging/notices bin/deb/bloat-$(DEB_ARCH) >bin/deb/notices
	packaging/debian/build $(DEB_ARCH) '$(or $(VERSION),unreleased)' $(SOURCE_DATE_EPOCH) bin/deb/bloat-$(DEB_ARCH) bin/share bin/deb/notices bin/deb
	rm bin/deb/bloat-$(DEB_ARCH) bin/deb/notices

# Built a second time, the packages must be the same to the bit.
package-test:
	rm -rf bin/deb
	$(MAKE) deb VERSION='$(or $(VERSION),unreleased)'
	cd bin/deb && sha256sum *.deb >sums
	$(MAKE) deb VERSION='$(or $(VERSION),unreleased)'
	cd bin/deb && sha256sum --check sums
	VERSION='$(or $(VERSION),unreleased)' packaging/debian/check bin/deb

# What the packages of other systems ask for.
version:
	@echo '$(or $(VERSION),unreleased)'

clean:
	rm -rf bin
