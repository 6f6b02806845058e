package lab

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestPresetsAreValidAndHaveTheLinksOfTheirNames(t *testing.T) {
	want := []string{"cable-2014", "ethernet-100", "archer", "dsl-6/0.5", "fibre-1000/500", "lte", "satellite-600ms", "starlink-like", "wifi-like"}
	var names []string
	for _, p := range Presets() {
		names = append(names, p.Name)
		if p.About == "" || strings.Contains(p.About, "\n") {
			t.Errorf("%s: about %q, want one line", p.Name, p.About)
		}
		c := p.Config
		c.Virtual = true
		within(t, c, func(ctx context.Context, l *Lab) {
			h := l.Client()
			rtts := ping(ctx, t, h, serverIPv4, 200*ms, h.Now().Add(20*time.Second))
			// An idle ping takes the propagation, two transmissions, and the jitter.
			if got := median(rtts); got < c.RTT || got > c.RTT+20*ms || len(rtts) < 80 {
				t.Errorf("%s: median of %d idle pings %v, want about the RTT of %v", p.Name, len(rtts), got, c.RTT)
			}
		})
		if got, ok := PresetOf(p.Name); !ok || got.About != p.About {
			t.Errorf("%s is not found by its name", p.Name)
		}
	}
	if got := strings.Join(names, " "); got != strings.Join(want, " ") {
		t.Errorf("presets %s, want %s", got, want)
	}
	if _, ok := PresetOf("x"); ok {
		t.Error("a preset without a name was found")
	}
}
