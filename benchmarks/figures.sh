#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Measures the figures that README.md and docs/*.md quote, each by its command in docs/figures.json, and writes them there
# and into the pages, with this machine and the date:
#   bash benchmarks/figures.sh [--list | --write-pages] [--machine NAME] [--table NAME]... [KEY]...
# All of them take hours. What a script cannot measure is named. `--help` explains the options.

exec python3 "$(dirname "${BASH_SOURCE[0]}")/figures/measure.py" "$@"
