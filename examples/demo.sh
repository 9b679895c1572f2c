#!/usr/bin/env bash
# What `make demo` shows: four ranks on this machine as two virtual nodes of two.
#
# mpiexec, python and hpccoll are those found first in PATH.  Exit status 0 only when everything shown is right.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for command in mpiexec python hpccoll; do
    command -v "$command" >/dev/null || {
        echo "demo.sh: there is no $command in PATH; make demo installs all that is needed" >&2
        exit 2
    }
done

# The demo shows what hpccoll chooses by itself; a lost rank is noticed within a minute.
unset HPCCOLL_ALGORITHM
export HPCCOLL_TIMEOUT_S="${HPCCOLL_TIMEOUT_S:-60}"

launch=(mpiexec)
# Open MPI 4 calls its mpiexec "OpenRTE", 5 "Open MPI".  It counts cores, where others take as many ranks as told.
case $(mpiexec --version 2>&1) in
*"Open MPI"* | *OpenRTE* | *PRRTE*)
    launch+=(--map-by :OVERSUBSCRIBE --bind-to none)
    if [ "$(id -u)" -eq 0 ]; then launch+=(--allow-run-as-root); fi
    ;;
esac
launch+=(-n 4)

show() {
    printf '$ %s\n' "$*"
    "$@" || {
        local status=$?
        echo "demo.sh: exit status $status of: $*" >&2
        exit "$status"
    }
}

heading() {
    printf '\n=== %s ===\n\n' "$1"
}

heading "Where the ranks are"
show "${launch[@]}" hpccoll topo --layout 2+2

heading "How 16 MiB are reduced between them"
show hpccoll plan allreduce --layout 2+2 --bytes 16M

heading "All-reduce from 1 KiB to 16 MiB, every element checked"
show "${launch[@]}" hpccoll bench allreduce -b 1K -e 16M -f 4 -c 1 --layout 2+2 --json "$scratch/bench.json"

heading "Training a neural network on four ranks, and again in one process"
show "${launch[@]}" python "$here/train_digits.py" --layout 2+2

heading "Seen"
python - "$scratch/bench.json" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    bench = json.load(file)
rows = sorted(bench["results"], key=lambda row: row["size"])
sizes = [row["size"] for row in rows]
wrong = [row[half]["nwrong"] for row in rows for half in ("out_of_place", "in_place")]
plans = list(dict.fromkeys(row["algorithm"] for row in rows))
faults = [
    fault
    for fault, found in (
        (f"sizes are {sizes}, not 1 KiB to 16 MiB by factors of 4", sizes != [1024 * 4**k for k in range(8)]),
        (f"wrong elements: {wrong}", any(count != 0 for count in wrong)),
        (f"out of bounds: {bench['out_of_bounds']}", bench["out_of_bounds"]["okay"] is not True),
        (f"errors: {bench['errors']}", bool(bench["errors"])),
        (f"one plan for all sizes: {plans}", len(plans) < 2),
    )
    if found
]
if faults:
    sys.exit("demo.sh: " + "; ".join(faults))


def text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


chosen = []
for plan in plans:
    taken = [size for size in sizes if rows[sizes.index(size)]["algorithm"] == plan]
    chosen.append(f"{plan} ({', '.join(map(text, taken))})")
print(
    f"layout {bench['layout']}: {len(sizes)} sizes from {text(sizes[0])} to {text(sizes[-1])}, "
    f"{sum(wrong)} wrong elements, {len(plans)} plans chosen by size: {'; '.join(chosen)}; "
    "training on 4 ranks equal to one process"
)
PYTHON
