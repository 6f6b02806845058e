# One direction after the other, as betterspeedtest.sh and speedtest-netperf.sh -s call netperf: so many sessions in the background, each with one number,
# waited for by their process ids, their numbers added up; a ping meanwhile, which is killed; whatever netperf says on stderr is a failure.
host=$1 seconds=$2 sessions=$3
speeds=$(mktemp) errors=$(mktemp) pings=$(mktemp)
trap 'rm -f "$speeds" "$errors" "$pings"' EXIT

direction() {
	: > "$speeds"
	ping "$host" > "$pings" 2>&1 &
	pinging=$!
	session=0
	while [ $session -lt "$sessions" ]; do
		netperf -4 -H "$host" -t "$2" -l "$seconds" -v 0 -P 0 -Z unasked >> "$speeds" 2>> "$errors" &
		session=$((session + 1))
	done
	for pid in $(pgrep -P $$ netperf); do
		wait "$pid"
	done
	kill -9 $pinging
	wait $pinging 2> /dev/null
	if [ -s "$errors" ]; then
		echo "netperf says:"
		cat "$errors"
		exit 1
	fi
	awk -v name="$1" '{ sum += $1 } END { printf "%9s: %6.2f Mbps\n", name, sum }' "$speeds"
}

direction Download TCP_MAERTS
direction Upload TCP_STREAM
