#!/bin/sh
# Installs a bundle on a machine that has nothing but Python 3.10 or newer and tar:
#
#     tar -xzf BUNDLE install.sh tool
#     sh install.sh BUNDLE [OPTIONS OF mirror install]
#
# PYTHON=/path/to/python names the interpreter to run mirror with.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

python=
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "install.sh: no Python 3.10 or newer is on PATH" >&2
    echo "Name one: PYTHON=/path/to/python sh install.sh ..." >&2
    exit 8
fi
if [ ! -d "$here/tool" ]; then
    echo "install.sh: the folder tool is not beside this script" >&2
    echo "Unpack both: tar -xzf BUNDLE install.sh tool" >&2
    exit 2
fi

site="$here/tool/.site-$$"
trap 'rm -rf "$site"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for wheel in "$here"/tool/*.whl; do
    "$python" -I -m zipfile -e "$wheel" "$site"
done
"$python" -I -c 'import sys; sys.path.insert(0, sys.argv.pop(1))
from mirror.cli import main
main()' "$site" install "$@"
