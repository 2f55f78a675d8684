#!/bin/sh
# Installs a bundle on a machine that has nothing but Python 3.10 or newer and tar:
#
#     tar -xzf BUNDLE install.sh tool
#     sh install.sh BUNDLE [OPTIONS OF mirror install]
#
# Of a bundle in volumes:
#
#     cat BUNDLE.0* | tar -xzf - install.sh tool
#     sh install.sh BUNDLE.001 [A VOLUME IN EACH OTHER FOLDER THAT HAS SOME]
#
# PYTHON=/path/to/python names the interpreter to run mirror with.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

python=
for candidate in "${PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
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
    echo "An increment holds of them what has changed; the mirror that is installed takes it:" >&2
    echo "    ROOT/current/tool/bin/mirror install BUNDLE" >&2
    exit 2
fi

# In place of this shell, so that a signal to the script is one to mirror. Wheels are unpacked beside
# themselves where that can be: the system's temporary folder may be small, or mounted noexec. TMPDIR
# has its say before that.
exec "$python" -I -c '
import os, pathlib, shutil, signal, sys, tempfile, zipfile, zlib

def end(code, text):
    print("install.sh:", text, file=sys.stderr)
    sys.exit(code)

for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_DFL:
        signal.signal(number, signal.default_int_handler)
tool, sys.argv[1] = sys.argv[1], "install"
site = None
try:
    beside = os.access(tool, os.W_OK) and "TMPDIR" not in os.environ
    site = tempfile.mkdtemp(prefix=".site-", dir=tool if beside else None)
    for wheel in pathlib.Path(tool).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    sys.path.insert(0, site)
    from mirror.cli import main
    main()
except KeyboardInterrupt:
    end(130, "interrupted")
except OSError as error:
    where = error.filename or site
    what = f"{where}: {error.strerror}" if where else error.strerror
    end(8, f"mirror cannot be unpacked ({what}); name a folder for that with TMPDIR=DIR")
except (ImportError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    end(5, f"{tool} is damaged or not whole ({error}): unpack it again, tar -xzf BUNDLE install.sh tool;"
        " or, if it is from an increment, install with ROOT/current/tool/bin/mirror")
finally:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if site:
        shutil.rmtree(site, ignore_errors=True)
' "$here/tool" "$@"
