#!/bin/sh
# The artifact of a review: runs of a quarter of an hour on two cores, then the claims, by the records in reports/data: the
# registry of claims wants five launches or seeds of each. As root also on emulated hosts.
set -eu
runs=$1
mkdir -p "$runs"
hpcdl run suites/quickstart.toml --launches 3 -o "$runs/quickstart"
for suite in firecaffe-cluster published simulated pipeline; do
    hpcdl run "suites/$suite.toml" -o "$runs/$suite"
done
if [ "$(id -u)" = 0 ] && command -v ip >/dev/null && command -v tc >/dev/null; then
    hpcdl testbed --hosts 16 --rate 400mbit -- hpcdl run suites/near-linear.toml --launches 2 -o "$runs/near-linear" \
        --case '*googlenet*-ring-p1-*' --case '*googlenet*-ring-p16-*' --case '*-ring-p2-*' \
        --case '*-parameter_server-*'
fi
hpcdl claims reports/data -o "$runs/claims.md"
