package watch

import "testing"

func TestAProcessKnowsItsOwnTime(t *testing.T) {
	before, _, err := Own()
	if err != nil {
		t.Skip("this system does not tell: ", err)
	}
	x := 0
	for n := 0; n < 1e8; n++ {
		x += n % 7
	}
	after, system, err := Own()
	if err != nil || after < before || after+system == 0 || x == 0 {
		t.Errorf("used %v, then %v and %v, %v", before, after, system, err)
	}
}
