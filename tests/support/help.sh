#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# help.sh PROGRAM [GROUP]...: checks that --help of a program fits in 100 columns, and that these groups of options are there.
set -u
help=$("$1" --help) || exit 1
long=$(grep -E '^.{101}' <<<"$help")
[ -z "$long" ] || { echo "longer than 100 columns: $long" >&2; exit 1; }
for group in "${@:2}"; do
  grep -qF "$group" <<<"$help" || { echo "no group '$group' in: $help" >&2; exit 1; }
done
