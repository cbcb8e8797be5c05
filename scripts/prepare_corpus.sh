#!/usr/bin/env bash
# Makes the text that the examples train on: the King James Bible (Debian package bible-kjv, 4.2
# million characters) as byte tokens, in data/ beside the examples: the first nine tenths for training,
# the last for validation. Does nothing when both files are there. It lies in scripts/ of the source,
# and beside the examples of the package milepost.
#   prepare_corpus.sh [MILEPOST]     MILEPOST: the binary (default: that of the release build, else the
#                                    one in PATH)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
examples=$here
[ ! -d "$here/../examples" ] || examples=$(cd "$here/../examples" && pwd)
milepost=${1:-$here/../build/release/bin/milepost}
[ -x "$milepost" ] || [ $# -gt 0 ] || milepost=$(command -v milepost || echo milepost)
folder=$examples/data
train=$folder/corpus.train.npy
validation=$folder/corpus.validation.npy

if [ -s "$train" ] && [ -s "$validation" ]; then
  echo "corpus: $train and $validation are there"
  exit 0
fi
if ! command -v bible >/dev/null; then
  echo "prepare_corpus.sh: needs the package bible-kjv: apt-get install bible-kjv" >&2
  exit 1
fi
if [ ! -x "$milepost" ]; then
  echo "prepare_corpus.sh: no binary at $milepost: install milepost, or scripts/build release" >&2
  exit 1
fi

mkdir -p "$folder"
text=$(mktemp --suffix=.txt)
trap 'rm -f "$text"' EXIT
# One verse per line, without its reference ("Ge1:1 In the beginning ..."); a line for each chapter.
bible -f 'Gen1:1-Rev22:21' </dev/null | awk '
  {
    split($1, reference, ":")
    if (reference[1] != chapter) { if (NR > 1) print ""; chapter = reference[1] }
    sub(/^[^ ]+ +/, "")
    print
  }' >"$text"
if ! log=$("$milepost" dataset tokenize --input "$text" --output "$train" \
  --validation-fraction 0.1 --validation-output "$validation" 2>&1); then
  printf '%s\n' "$log" >&2
  exit 1
fi
echo "corpus: made $train and $validation ($(wc -c <"$text") characters)"
