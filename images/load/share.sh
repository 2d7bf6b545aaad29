#!/bin/bash
# Shares of a real GPU among loads that launch and wait, by context-switch events: native, then under dfq.
#   share.sh TURNSTILE KERNEL_US:WEIGHT KERNEL_US:WEIGHT ...
# Needs root, an NVIDIA GPU under a known driver and nvcc; libturnstile_preload.so lies beside TURNSTILE, as cargo builds
# it. SECONDS_EACH and PERIOD_MS may be set.
set -eu
turnstile=$(realpath "$1")
shift
sources=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
processes=()
finish() {
    kill "${processes[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT
PATH=$PATH:/usr/local/cuda/bin
nvcc -O2 -o "$folder/throttle" "$sources/throttle.cu" -lcuda
preload=$(dirname "$turnstile")/libturnstile_preload.so
[ -e "$preload" ] || { echo "$preload is not there: cargo build --release -p turnstile-preload" >&2; exit 1; }
: >"$folder/handles"
tenants=()
for load in "$@"; do
    TURNSTILE_HANDLES=$folder/handles LD_PRELOAD=$preload \
        "$folder/throttle" "${load%%:*}" 3600 >"$folder/load.${#processes[@]}" &
    processes+=($!)
    tenants+=(--tenant "$!:${load##*:}")
done
for index in "${!processes[@]}"; do
    until grep -q ready "$folder/load.$index"; do
        kill -0 "${processes[$index]}"
        sleep 0.05
    done
done
for policy in none dfq; do
    "$turnstile" nvidia-watch --policy "$policy" --period-ms "${PERIOD_MS:-20}" --seconds "${SECONDS_EACH:-5}" \
        --handles "$folder/handles" "${tenants[@]}"
    for index in "${!processes[@]}"; do
        echo "process ${processes[$index]}: $(tail -n 1 "$folder/load.$index" | sed 's/second [0-9]* kernels//') kernels in its last second"
    done
    echo
done
