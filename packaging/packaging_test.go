package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bufferbloat/internal/facility"
)

// need returns the path of a program.
func need(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		facility.Missing(t, name, err.Error())
	}
	return path
}

// output returns what a command prints, without white space at the end; one that fails or complains ends the test.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, complaints.String())
	}
	return strings.TrimRight(string(out), "\n")
}

func TestVersionsOfPackages(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ of, deb, openwrt string }{
		{"60509c9", "0~20251124160000.60509c9-1", "0.20251124160000~60509c9"},
		{"60509c9-dirty", "0~20251124160000.60509c9+dirty-1", "0.20251124160000~60509c9"},
		{"1234567", "0~20251124160000.1234567-1", "0.20251124160000~1234567"},
		{"unreleased", "0~20251124160000.unreleased-1", "0.20251124160000"},
		{"v1.0.0-rc1", "1.0.0~rc1-1", "1.0.0_rc1"},
		{"v1.0.0-rc1-3-gabcdef0", "1.0.0~rc1+3.gabcdef0-1", "1.0.0_rc1_p3~abcdef0"},
		{"v1.0.0", "1.0.0-1", "1.0.0"},
		{"1.0.0", "1.0.0-1", "1.0.0"},
		{"v1.0.0-5-gabc1234", "1.0.0+5.gabc1234-1", "1.0.0_p5~abc1234"},
		{"v1.0.0-5-gabc1234-dirty", "1.0.0+5.gabc1234+dirty-1", "1.0.0_p5~abc1234"},
	} {
		for kind, want := range map[string]string{"deb": tt.deb, "openwrt": tt.openwrt} {
			if got := output(t, exec.CommandContext(t.Context(), "./version", kind, tt.of, "1764000000")); got != want {
				t.Errorf("the version %s for %s is %q, want %q", tt.of, kind, got, want)
			}
		}
	}
}

func TestVersionsOfDebianPackagesAreInOrder(t *testing.T) {
	t.Parallel()
	dpkg := need(t, "dpkg")
	order := []string{"60509c9", "v1.0.0-rc1", "v1.0.0-rc1-3-gabcdef0", "v1.0.0", "v1.0.0-5-gabc1234", "v1.0.1"}
	var versions []string
	for _, of := range order {
		versions = append(versions, output(t, exec.CommandContext(t.Context(), "./version", "deb", of, "1764000000")))
	}
	for i, v := range versions[1:] {
		if err := exec.CommandContext(t.Context(), dpkg, "--compare-versions", versions[i], "lt", v).Run(); err != nil {
			t.Errorf("%s is not before %s (%v)", versions[i], v, err)
		}
	}
}

func TestScriptsAreShell(t *testing.T) {
	t.Parallel()
	shells := [][]string{{need(t, "sh"), "-n"}}
	if busybox, err := exec.LookPath("busybox"); err == nil {
		shells = append(shells, []string{busybox, "ash", "-n"})
	}
	for _, script := range []string{"version", "notices", "debian/build", "debian/boot", "debian/bloat-server.postinst", "debian/bloat-server.prerm",
		"debian/bloat-server.postrm", "openwrt/bufferbloat/files/bufferbloat.init"} {
		for _, shell := range shells {
			output(t, exec.CommandContext(t.Context(), shell[0], append(slices.Clone(shell[1:]), script)...))
		}
	}
	output(t, exec.CommandContext(t.Context(), need(t, "bash"), "-n", "debian/check"))
}

// openwrtStubs stand for what /etc/rc.common brings along: the options come from variables, and what procd is told is printed.
const openwrtStubs = `
config_load() { [ "$1" = bufferbloat ] || exit 9; }
config_get() { eval "$1=\${UCI_$3:-\$4}"; }
config_get_bool() {
	config_get "$@"
	eval "case \$$1 in 1|on|true|yes|enabled) $1=1 ;; 0|off|false|no|disabled) $1=0 ;; *) $1=\$4 ;; esac"
}
config_list_foreach() { eval "set -- $3 \$UCI_LIST_$2"; local each=$1; shift; local one; for one; do $each "$one"; done; }
procd_open_instance() { echo open; }
procd_close_instance() { printf 'command'; printf '|%s' $command_words; echo; echo close; }
procd_set_param() {
	if [ "$1" = command ]; then shift; command_words="$*"; return; fi
	printf '%s' "$1"; shift; [ $# = 0 ] || printf '|%s' "$@"; echo
}
procd_append_param() { [ "$1" = command ] || exit 9; shift; command_words="$command_words $*"; }
procd_add_reload_trigger() { echo "reload|$*"; }
. ./openwrt/bufferbloat/files/bufferbloat.init
"$@"
`

func TestTheInitScriptTellsProcdWhatTheConfigurationSays(t *testing.T) {
	t.Parallel()
	busybox := need(t, "busybox")
	ever := []string{"user|bufferbloat", "group|bufferbloat", "no_new_privs|1", "limits|core=0 0|nofile=4096 4096", "respawn", "stdout|1", "stderr|1"}
	for name, tt := range map[string]struct {
		env  []string
		want string // the command, "" for no instance
	}{
		"without a configuration nothing runs":       {nil, ""},
		"switched off nothing runs":                  {[]string{"UCI_enabled=0", "UCI_port=1"}, ""},
		"switched off in a word":                     {[]string{"UCI_enabled=off"}, ""},
		"switched on, with the program's defaults":   {[]string{"UCI_enabled=1"}, "command|/usr/bin/speedtest|serve"},
		"switched on in a word":                      {[]string{"UCI_enabled=true"}, "command|/usr/bin/speedtest|serve"},
		"several addresses are one list":             {[]string{"UCI_enabled=1", "UCI_LIST_address=192.0.2.1 2001:db8::1"}, "command|/usr/bin/speedtest|serve|--bind|192.0.2.1,2001:db8::1"},
		"an option that is empty is as if not there": {[]string{"UCI_enabled=1", "UCI_passphrase=", "UCI_max_tests=16"}, "command|/usr/bin/speedtest|serve|--max-tests|16"},
		"every option has its flag": {[]string{"UCI_enabled=1", "UCI_port=1", "UCI_irtt_port=2", "UCI_data_ports=3-4", "UCI_passphrase=x", "UCI_max_tests=5", "UCI_max_time=6",
			"UCI_max_tests_per_address=7", "UCI_max_tests_per_hour=8", "UCI_max_rate=10Mbit"},
			"command|/usr/bin/speedtest|serve|--port|1|--irtt-port|2|--data-ports|3-4|--passphrase|x|--max-tests|5|--max-time|6|" +
				"--max-tests-per-address|7|--max-tests-per-hour|8|--max-rate|10Mbit"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), busybox, "ash", "-c", openwrtStubs, "ash", "start_service")
			cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, tt.env...)
			want := ""
			if tt.want != "" {
				want = strings.Join(slices.Concat([]string{"open"}, ever, []string{tt.want, "close"}), "\n")
			}
			if got := output(t, cmd); got != want {
				t.Errorf("procd was told\n%s\nwant\n%s", got, want)
			}
		})
	}
	cmd := exec.CommandContext(t.Context(), busybox, "ash", "-c", openwrtStubs, "ash", "service_triggers")
	if got, want := output(t, cmd), "reload|bufferbloat"; got != want {
		t.Errorf("the triggers are %q, want %q", got, want)
	}
}

func TestTheRouterBuildTakesWhatTheInitScriptGives(t *testing.T) {
	t.Parallel()
	busybox := need(t, "busybox")
	program := filepath.Join(t.TempDir(), "speedtest")
	build := exec.CommandContext(t.Context(), need(t, "go"), "build", "-o", program, "../cmd/speedtest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output(t, build)
	cmd := exec.CommandContext(t.Context(), busybox, "ash", "-c", openwrtStubs, "ash", "start_service")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "UCI_enabled=1", "UCI_LIST_address=127.0.0.1 ::1", "UCI_port=1", "UCI_irtt_port=2", "UCI_data_ports=3-4", "UCI_passphrase=x",
		"UCI_max_tests=5", "UCI_max_time=6", "UCI_max_tests_per_address=7", "UCI_max_tests_per_hour=8", "UCI_max_rate=10Mbit"}
	for line := range strings.Lines(output(t, cmd)) {
		words, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "command|/usr/bin/speedtest|")
		if !ok {
			continue
		}
		// Options are read in their order: those before --help have been taken.
		if got := output(t, exec.CommandContext(t.Context(), program, append(strings.Split(words, "|"), "--help")...)); !strings.Contains(got, "--max-rate") {
			t.Errorf("speedtest %s --help prints %q", words, got)
		}
		return
	}
	t.Error("the init script gives procd no command")
}

// The options that the file tells of are those that the init script reads, and by default the server is off.
func TestTheConfigurationOfOpenWrtNamesEveryOption(t *testing.T) {
	t.Parallel()
	config, err := os.ReadFile("openwrt/bufferbloat/files/bufferbloat.config")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("openwrt/bufferbloat/files/bufferbloat.init")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for line := range strings.Lines(string(config)) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if len(words) == 3 && (words[0] == "option" || words[0] == "list") {
			told = append(told, words[1])
		}
	}
	var read []string
	for line := range strings.Lines(string(script)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "append_option":
			read = append(read, words[2])
		case len(words) == 4 && words[0] == "config_list_foreach":
			read = append(read, words[2])
		case len(words) == 5 && words[0] == "config_get_bool":
			read = append(read, words[3])
		}
	}
	slices.Sort(told)
	slices.Sort(read)
	if !slices.Equal(told, read) || len(read) != 11 {
		t.Errorf("the configuration tells of %v, and the script reads %v", told, read)
	}
	if !strings.Contains(string(config), "\toption enabled '0'\n") {
		t.Error("the server is not off by default")
	}
}

// openwrtFiles stand for what OpenWrt's build includes: they carry the package's steps out with this machine's tools.
var openwrtFiles = map[string]string{
	"rules.mk": `
INSTALL_DIR:=install -d -m0755
INSTALL_BIN:=install -m0755
INSTALL_CONF:=install -m0600
PKG_BUILD_DIR=$(TOPDIR)/build
`,
	"include/package.mk": `
define BuildPackage
all:: package-$(1)
package-$(1): build
	@echo 'package|$(1)|$(PKG_VERSION)|$(PKG_RELEASE)'
	@$$(call Package/$(1)/install,$(TOPDIR)/root)
$$(foreach field,SECTION CATEGORY TITLE,$$(if $$(findstring $$(field):=,$$(value Package/$(1))),,$$(error $(1) has no $$(field))))
endef
all::
build:
	$(Build/Prepare)
	$(Build/Configure)
	$(Build/Compile)
`,
	"feeds/packages/lang/golang/golang-values.mk": "GO_OS:=linux\nGO_ARCH:=mipsle\nGO_MIPS:=softfloat\nGO_ARCH_DEPENDS:=@(mipsel)\n",
	"host/bin/go": `#!/bin/sh
echo "go|$CGO_ENABLED|$GOOS|$GOARCH|$GOMIPS|$*"
while [ "$1" != -o ]; do shift; done
[ -f go.mod ] && cp go.mod "$2"
`,
}

func TestTheMakefileOfOpenWrtBuildsBothPackages(t *testing.T) {
	t.Parallel()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range openwrtFiles {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// As scripts/feeds does it.
	feed, err := filepath.Abs("openwrt")
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(top, "feeds", "own")
	if err := os.Symlink(feed, link); err != nil {
		t.Fatal(err)
	}
	version := output(t, exec.CommandContext(t.Context(), need(t, "make"), "-s", "--no-print-directory", "-C", "..", "version"))
	packaged := output(t, exec.CommandContext(t.Context(), "./version", "openwrt", version))
	out := output(t, exec.CommandContext(t.Context(), "make", "-s", "--no-print-directory", "-C", filepath.Join(link, "bufferbloat"),
		"TOPDIR="+top, "INCLUDE_DIR="+filepath.Join(top, "include"), "STAGING_DIR_HOSTPKG="+filepath.Join(top, "host"), "DL_DIR="+filepath.Join(top, "dl")))
	want := "go|0|linux|mipsle|softfloat|build -trimpath -buildvcs=false -ldflags -s -w -X main.version=" + version + " -o " + top + "/build/speedtest ./cmd/speedtest\n" +
		"package|bufferbloat-speedtest|" + packaged + "|1\npackage|bufferbloat-server|" + packaged + "|1"
	if out != want {
		t.Errorf("the build says\n%s\nwant\n%s", out, want)
	}
	for name, mode := range map[string]os.FileMode{"usr/bin/speedtest": 0o755, "etc/init.d/bufferbloat": 0o755, "etc/config/bufferbloat": 0o600} {
		info, err := os.Stat(filepath.Join(top, "root", name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want mode %v", name, info, err, mode)
		}
	}
}
