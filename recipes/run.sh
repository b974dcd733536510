#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# Steps of the recipe on a GPU machine. Usage: run.sh STEP...   (README.md lists the steps and variables)
#   SITE   site-packages folder to learn from      WORK   folder for data and checkpoints
#   OUT    folder for results                      TRAIN_S, WRITE_S, DRAFT_S   seconds of each training step
#   LENGTH, WRITE_SEED; INIT, LAYERS, MLP_SIZE   (optional) see continuations.py and train_drafter.py
#   TRAIN_UNTIL, DRAFT_UNTIL  instead of seconds: Unix time at which a training step ends
#   TOKENIZER  (optional) folder with tokenizer.json; without it the tokenizer is trained
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here:$here/../src:${PYTHONPATH:-} PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=$WORK/cache/triton TORCHINDUCTOR_CACHE_DIR=$WORK/cache/inductor
mkdir -p "$WORK" "$OUT"

corpus() {
  [ -e "$WORK/data/done" ] && return
  python3 "$here/corpus.py" --site "$SITE" --out "$WORK/data" ${TOKENIZER:+--tokenizer "$TOKENIZER"}
}
check() { python3 "$here/check_delta_rule.py"; }
target() {  # the corpus is read while kernels compile
  corpus & local reader=$!
  python3 "$here/train_target.py" --data "$WORK/data" --out "$WORK/target" \
    --report "$OUT/target.json" ${TRAIN_UNTIL:+--until "$TRAIN_UNTIL"} ${TRAIN_S:+--seconds "$TRAIN_S"}
  wait $reader
}
write() {
  corpus & local reader=$!
  python3 "$here/continuations.py" --data "$WORK/data" --target "$WORK/target" --out "$WORK/text" \
    --seconds "$WRITE_S" ${LENGTH:+--length "$LENGTH"} ${WRITE_SEED:+--seed "$WRITE_SEED"}
  wait $reader
}
drafter() {
  python3 "$here/train_drafter.py" --target "$WORK/target" --text "$WORK/text" --out "$WORK/drafter" \
    --report "$OUT/drafter.json" --rounds "$WORK/rounds.safetensors" ${INIT:+--init "$INIT"} \
    ${LAYERS:+--layers "$LAYERS"} ${MLP_SIZE:+--mlp-size "$MLP_SIZE"} \
    ${DRAFT_UNTIL:+--until "$DRAFT_UNTIL"} ${DRAFT_S:+--seconds "$DRAFT_S"}
  python3 "$here/fit_acceptance.py" --rounds "$WORK/rounds.safetensors" --target "$WORK/target" \
    --drafter "$WORK/drafter"
}
pack() {  # what comes back, in files of at most 15 MiB
  tar -C "$WORK" -czf "$WORK/results.tgz" $(cd "$WORK" && ls -d data/*.json data/tokenizer target drafter \
    rounds.safetensors text/counts.json 2>/dev/null)
  split -b 15m "$WORK/results.tgz" "$OUT/results.tgz."
}

for step in "$@"; do
  echo "== $step $(date -u +%H:%M:%S)"
  $step
done
echo "== end $(date -u +%H:%M:%S)"
