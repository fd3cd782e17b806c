#!/usr/bin/env bash
# Writes the Markdown file $1 as a comment under $COMMENTS (repos/OWNER/NAME/issues/NUMBER/comments), in the place of the
# one that begins with the same line, if there is one.
set -euo pipefail

mark=$(head -n 1 "$1")
found=$(
  gh api --paginate "$COMMENTS" --jq '.[] | select(.user.type == "Bot") | [.id, (.body | split("\n")[0])] | @tsv' |
    awk -F '\t' -v mark="$mark" '$2 == mark { print $1; exit }'
)
if [ -n "$found" ]; then
  gh api --silent --method PATCH "${COMMENTS%/*/comments}/comments/$found" --field "body=@$1"
else
  gh api --silent --method POST "$COMMENTS" --field "body=@$1"
fi
