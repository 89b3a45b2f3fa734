#!/usr/bin/env bash
# The AttendOut table of docs/results.md: bash studies/attendout.sh MODEL DATA OUTPUT WORKERS SEEDS TASK...
set -euo pipefail
model=$1 data=$2 output=$3 workers=$4 seeds=$5
for task in "${@:6}"; do
    # shellcheck disable=SC2086
    python3 -m studies.glue --model "$model" --name all-MiniLM-L6-v2 --data "$data/$task" --task "$task" \
        --seeds $seeds --epochs 3 --workers "$workers" --output "$output/glue-$task.csv" --learned "$output/learned-$task.json" \
        --methods plain attendout:T=10,active=0.5 attendout:T=10,active=0.5,reward_on=held_out \
        attendout:T=10,init_drop=0.5,samples=0,credit=paired,normalize=false,layer_offsets=false \
        attendout:T=10,mode=prune,init_drop=0.3 scheduled_dropout attention_layerdrop &
done
wait
