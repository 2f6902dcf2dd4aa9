#!/usr/bin/env bash
# Writes the training text, one verse a line ("Ge1:1 ..."), to the file named by the first argument.
# Source: Debian's packages bible-kjv-text (the compressed text) and bible-kjv (the program that unpacks it).
# Needs apt-get with package lists, dpkg, and libreadline8; installs nothing.
set -euo pipefail
out=${1:?usage: fetch_text.sh OUTPUT_FILE}
want=cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -qq download bible-kjv bible-kjv-text && for deb in ./*.deb; do dpkg -x "$deb" root; done)
"$work/root/usr/bin/bible" -p "$work/root/usr/lib/" -f Gen1:1-Rev22:21 > "$out.tmp"
got=$(sha256sum "$out.tmp" | cut -d' ' -f1)
mv "$out.tmp" "$out"
if [ "$got" != "$want" ]; then
  echo "fetch_text.sh: $out has sha256 $got, not $want: this package version carries another text, so a retrained model will differ." >&2
fi
