#!/usr/bin/env bash
# Prints the plan of $JOB for $PROVIDER as Markdown, and how its request differs from that of the checkout $BASE.
set -euo pipefail

# Longer than any that a plan has, so that nothing in it ends the block.
fence=$(printf '~%.0s' {1..60})
limit=30000 # characters of each block: GitHub takes 65,536 per comment

block() { # LANGUAGE, text on stdin
  printf '%s%s\n' "$fence" "$1"
  head -c "$limit" | tr -d '\r'
  printf '\n%s\n' "$fence"
}

# The first line finds the comment again: comment.sh.
printf '<!-- cloudtrain %s -->\n' "$(printf '%s' "$JOB $PROVIDER" | sha256sum | cut -c -16)"
printf '### The job on %s\n\n' "$PROVIDER"
cloudtrain plan "$JOB" --provider "$PROVIDER" 2>&1 | block text

[ -n "$BASE" ] || exit 0
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
request=$folder/before
printf '\n### What changes in the request\n\n'
if [ ! -e "$BASE/$JOB" ]; then
  echo "The job is new."
elif ! (cd "$BASE" && cloudtrain plan "$JOB" --provider "$PROVIDER" --json) >"$request" 2>"$request.why"; then
  echo "The request before this change cannot be planned:"
  block text <"$request.why"
elif ! diff=$(cloudtrain plan "$JOB" --provider "$PROVIDER" --diff "$request" 2>"$request.why"); then
  echo "It cannot be compared:"
  block text <"$request.why"
elif [ -n "$diff" ]; then
  printf '%s' "$diff" | block diff
else
  echo "Nothing."
fi
