#!/bin/sh
# Sizes the service on yesterday's traffic, and tells somebody when that asks for a change.
#
#   nightly.sh SPEC FOLDER_OF_DAYS HISTORY
#
# A day is a file such as 2026-11-29.csv. NOTIFY is a command that gets the words to send; without
# it they go to standard error. Ends with 0 when the night was recorded, whatever it recommends.
set -u
if [ $# -ne 3 ]; then
    echo "usage: nightly.sh SPEC FOLDER_OF_DAYS HISTORY" >&2
    exit 2
fi
day=${DAY:-$(date -u -d yesterday +%F)}

tell() {
    if [ -n "${NOTIFY:-}" ]; then "$NOTIFY" "$1"; else echo "$1" >&2; fi
}

sieve nightly "$1" --traffic "$2/$day.csv" --history "$3" --day "$day"
code=$?
case $code in
    0) ;;
    5) tell "$day: the deployment meets its objectives on the point estimate only" ;;
    6) tell "$day: another deployment is recommended, see $3/history.html" ;;
    3 | 4) tell "$day: no deployment meets the objectives, see $3/history.html" ;;
    *) tell "$day: sieve nightly failed with code $code"; exit "$code" ;;
esac
