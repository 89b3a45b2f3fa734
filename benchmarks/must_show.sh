#!/bin/sh
# The measurements of captured steps that matter most, in about six minutes on a GPU, in the order of their importance.
# Results and logs are written to the folder $OUT, each as soon as it is measured.
#
#     OUT=/tmp/results sh benchmarks/must_show.sh

OUT=${OUT:?the folder for results}
mkdir -p "$OUT"

# Runs a benchmark: name of its log, seconds that it may take, arguments.
measure() {
    name=$1 limit=$2
    shift 2
    start=$(date +%s)
    timeout "$limit" python -u "$@" > "$OUT/$name.txt" 2>&1 || echo "$name: exit code $?"
    echo "$name took $(($(date +%s) - start)) s"
}

measure tests 75 -m pytest -v -n 12 -m 'gpu or not slow' tests/test_weight_kernels.py tests/test_bits.py \
    tests/test_kernels.py::test_bits_of_rows_without_padding_match_the_reference \
    tests/test_captured.py::test_gradient_checkpointing_is_captured \
    'tests/test_captured.py::test_every_captured_method_matches_eager[bert-l2_sp:alpha=0.5]' \
    tests/test_study_worker.py::test_runs_that_share_graphs_equal_runs_of_their_own \
    tests/test_captured_evaluation.py::test_evaluations_of_a_captured_run_match_an_eager_one
measure family 130 -m benchmarks.trainer_steps --part family --output "$OUT/family.csv" --only \
    'stock plain' 'plain captured' 'addrop captured' rdrop r3f hiddencut hiddencut:by=gradient scal layerdrop \
    attention_layerdrop headmask headmask:by=importance scores_dropout:pattern=element scores_dropout:pattern=column \
    scheduled_dropout drophead attention_dropout unidrop concrete_dropout mixout dropconnect child_tuning
measure long 100 -m benchmarks.trainer_steps --sizes 4x2048 1x8192 8x1024 2x4096 16x512 64x256 --rounds 1 \
    --only 'stock plain' 'plain captured' 'addrop captured' --output "$OUT/long.csv"
for model in mpnet-base deberta-v3-base; do
    measure "$model" 22 -m benchmarks.trainer_steps --model "$model" --sizes 16x128 --rounds 1 \
        --only 'stock plain' 'plain captured' 'addrop captured' --output "$OUT/models.csv"
done
measure lora 40 -m benchmarks.trainer_steps --model 'qwen2-0.5b lora' --sizes 8x512 4x2048 --rounds 1 \
    --only 'plain captured' 'addrop captured' --output "$OUT/models.csv"
measure runs-300 40 -m benchmarks.whole_runs --sizes 300 --models roberta-base --rounds 1 --output "$OUT/runs.csv" \
    --runs 'plain eager' 'plain captured' 'addrop eager' 'addrop captured'
# As many steps as 300 texts in 10 epochs: 1,000 and 3,000 texts in 10 epochs take 8 minutes.
measure runs-1000 25 -m benchmarks.whole_runs --sizes 1000 --epochs 3 --models roberta-base --rounds 1 \
    --runs 'addrop eager' 'addrop captured' --output "$OUT/runs.csv"
measure inference 45 -m benchmarks.inference --device cuda --dtype bfloat16 --seconds 0.3 --sizes 32x128 1x128 \
    --only captured compile --output "$OUT/inference.csv"
