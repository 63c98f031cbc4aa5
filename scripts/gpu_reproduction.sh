#!/usr/bin/env bash
# Trains ResNet-20 on all of CIFAR-10 at the settings of Zhang & Abdelrahman, for as many epochs as fit into some minutes,
# and judges their claims: scripts/gpu_reproduction.sh CIFAR [SETTING ...]
#
# CIFAR is a folder with train/CLASS/ and test/CLASS/, or a zip of one; a zip in several parts is given as a pattern in
# quotes, such as 'parts/*'. Each SETTING goes to every run. Four trainings run under every seed, as many runs side by side
# as there are cores: without a pipeline, with one cut after layer 7 (early) or 19 (late), and the hybrid, which has the
# late cut for STALE_STEPS and then no pipeline. When the time is up all runs save a checkpoint; the next call goes on from
# there, up to the paper's 100,000 steps. The verdicts are on the epochs that all runs have.
#
# Variables: MINUTES of a call (9), SEEDS ("0 1 2"), JOBS side by side (cores), STALE_STEPS of the hybrid (7820, 20 epochs),
# RUNS for the runs (outputs/gpu_reproduction), DATA for the unpacked images (RUNS/data), PYTHON (python3).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

MINUTES=${MINUTES:-9}
SEEDS=${SEEDS:-0 1 2}
JOBS=${JOBS:-$(nproc)}
STALE_STEPS=${STALE_STEPS:-7820}
RUNS=${RUNS:-outputs/gpu_reproduction}
DATA=${DATA:-$RUNS/data}
PYTHON=${PYTHON:-python3}
SAVING_S=30 # for the last checkpoints and the verdicts
began=$SECONDS

if [ $# -lt 1 ]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
source=$1
shift

mkdir -p "$RUNS" || exit 1
if [ -d "$source" ]; then
    DATA=$source
elif [ ! -f "$DATA/.complete" ]; then
    mkdir -p "$DATA" || exit 1
    # shellcheck disable=SC2086  # a pattern names the parts of a zip
    cat $source >"$RUNS/images.zip" || exit 1
    "$PYTHON" -m zipfile -e "$RUNS/images.zip" "$DATA" && rm "$RUNS/images.zip" && touch "$DATA/.complete" || exit 1
fi
root=$(dirname "$(find "$DATA" -type d -name train | head -n 1)")
if [ ! -d "$root/test" ]; then
    echo "$source: must have train/CLASS/ and test/CLASS/ in it" >&2
    exit 2
fi

# the words of a training in addition to those of all
words() {
    case $1 in
    baseline) echo "experiment=zhang/table2_resnet20_baseline optimizer.lr=0.01" ;;
    early) echo "experiment=zhang/fig6_resnet20 partition.ppv=[7]" ;;
    late) echo "experiment=zhang/fig6_resnet20 partition.ppv=[19]" ;;
    hybrid)
        echo "experiment=zhang/table4_resnet20 partition.ppv=[19] phases.0.steps=$STALE_STEPS" \
            "train.epochs=256 train.max_steps=100000"
        ;;
    esac
}

run() { # TRAINING SEED SECONDS SETTING ...
    local training=$1 seed=$2 seconds=$3
    shift 3
    # shellcheck disable=SC2046  # several words
    timeout --signal=TERM --kill-after=60 "$seconds" "$PYTHON" -m pipetrain run --config-dir papers/conf $(words "$training") \
        dataset=image_folder "dataset.root=$root" dataset.in_memory=true \
        "dataset.mean=[0.4914,0.4822,0.4465]" "dataset.std=[0.2470,0.2435,0.2616]" "seed=$seed" \
        checkpoint.keep_last=1 launch.stop_timeout=60 log.every_steps=50 "$@" \
        "hydra.run.dir=$RUNS/runs/${training}-$seed" resume=auto >"$RUNS/${training}-$seed.txt" 2>&1
    local code=$?
    case $code in
    0 | 3 | 75 | 124) ;; # completed, diverged, stopped
    *) echo "$training seed=$seed: exit code $code: $(tail -n 1 "$RUNS/${training}-$seed.txt")" ;;
    esac
}

# each wave of runs has the same share of the time
count=$((4 * $(wc -w <<<"$SEEDS")))
waves=$(((count + JOBS - 1) / JOBS))
left=$((60 * MINUTES - (SECONDS - began) - SAVING_S))
share=$((left / waves))
if [ "$share" -lt 1 ]; then
    echo "MINUTES=$MINUTES: too few for $waves runs one after another" >&2
    exit 2
fi
echo "$count runs, $JOBS side by side, $share s each"
for seed in $SEEDS; do
    for training in baseline early late hybrid; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        run "$training" "$seed" "$share" "$@" &
    done
done
wait

if [ -n "$(find "$root/train" -iname '*.jp*g' -print -quit)" ]; then
    echo "the images are JPEG-compressed CIFAR-10"
fi
"$PYTHON" -m papers at-size "$RUNS/runs"
