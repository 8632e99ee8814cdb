#!/bin/sh
# What the loop still has to show on a GPU, as one command that goes on where it was ended:
#
#     tools/gpu_loop.sh KERNELBENCH DIR [SECONDS [MINUTES [GPUS [JOBS]]]]
#
# First the planted bottlenecks and their healthy twins, counted by ncu (about 2 minutes), unless DIR
# has them; then the three arms on 48 problems, each arm MINUTES a problem (default 0.25). By the
# minutes given and 10 seconds of start for each bench that is 48 x 3 x (15 s + 10 s), an hour, one
# problem at a time on one GPU (GPUS and JOBS are of tools/three_arms.py); the control ends with the
# loop's measurements and is shorter. Calls of SECONDS (default 560) end in time; the same call goes
# on. When nothing is left, DIR/arms/loop.jsonl belongs into db/evidence.
set -eu
checkout=$1
out=$2
python=${PYTHON:-python}
here=$(dirname "$0")
mkdir -p "$out"
begun=$(date +%s)
if [ ! -e "$out/planted/done" ]; then
    "$python" "$here/planted_bottlenecks.py" --ncu --out "$out/planted"
    touch "$out/planted/done"
fi
left=$((${3:-560} - $(date +%s) + begun))
exec "$python" "$here/three_arms.py" "$checkout" --out "$out/arms" \
    --seconds "$left" --minutes "${4:-0.25}" --gpus "${5:-1}" --jobs "${6:-1}"
