#!/bin/sh
# Started by --no-python.
echo "program $RANK of $WORLD_SIZE: $*"
cat
echo to stderr >&2
