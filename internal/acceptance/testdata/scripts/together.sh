# Both directions at once, as netperfrunner.sh and speedtest-netperf.sh -c call netperf: its output goes through a pipe, and the sums are those of awk.
host=$1 seconds=$2 sessions=$3
down=$(mktemp) up=$(mktemp)
trap 'rm -f "$down" "$up"' EXIT

for session in $(seq "$sessions"); do
	netperf -H "$host" -4 -t TCP_STREAM -l "$seconds" -v 0 -P 0 | cat >> "$up" &
	netperf -H "$host" -4 -t TCP_MAERTS -l "$seconds" -v 0 -P 0 | cat >> "$down" &
done
wait
echo " Download: " "$(awk '{ s += $1 } END { print s }' "$down")" Mbps
echo "   Upload: " "$(awk '{ s += $1 } END { print s }' "$up")" Mbps
