#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# parsed.sh OBJECT COMMAND...: runs a compiler that only parses, and makes an empty object that says when it found
# nothing, so that the next build parses only what has changed.
object=$1
shift
"$@" && touch "$object"
