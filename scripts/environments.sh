# Sourced by .ci/run, scripts/engine_environment and scripts/other_pythons: virtual environments outside the checkout,
# kept in a cache and keyed by what is pinned.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME

cache=${XDG_CACHE_HOME:-$HOME/.cache}/hermes-rl-ci
mkdir -p "$cache"

# Prints "MINOR PATH" of each usable CPython 3.11 or newer, one a minor version, oldest first.
find_pythons() {
    local candidate found
    for candidate in "$HOME"/.pyenv/versions/3.*/bin/python3 python3.1{1,2,3,4,5} python3 /usr/bin/python3; do
        found=$("$candidate" -c '
import sys, ssl, sqlite3, venv, ensurepip
v = sys.version_info
if sys.implementation.name == "cpython" and v >= (3, 11) and v.releaselevel == "final" and sys.prefix == sys.base_prefix:
    print(v.minor, sys.executable)
' 2>/dev/null) && [ -n "$found" ] && echo "$found"
    done | sort -n -s -k1,1 | awk '!seen[$1]++'
}

# uv PYTHON: prints where uv is, made on first use; nothing when it cannot be had.
uv() {
    local home
    home=$cache/uv-$(sha256sum <constraints/ci.txt | cut -c1-16)
    {
        flock --wait 600 8 || return 1
        if [ ! -e "$home/complete" ]; then
            rm -rf "$home"
            "$1" -m venv "$home" && "$home/bin/python" -m pip install --quiet -r constraints/ci.txt || return 1
        fi
        touch "$home/complete"
    } 8>"$home.lock" >&2
    echo "$home/bin/uv"
}

# install PYTHON ARGUMENT…: `pip install`, by uv, which takes a tenth of pip's time; by pip where uv finds no packages.
install() {
    local python=$1 uv
    shift
    if uv=$(uv "$python") && "$uv" pip install --quiet --no-progress --python "$python" "$@" 9>&-; then
        return
    fi
    echo "uv could not install these; trying pip" >&2
    "$python" -m pip install --quiet "$@" 9>&-
}

# environment_path PYTHON GROUP…: where the virtual environment of these dependency groups is kept.
environment_path() {
    local key needs
    needs=$("$1" -c '
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
print(project["project"]["dependencies"], project["dependency-groups"])')
    key=$( { "$1" -VV; echo "${@:2}" "$needs"; cat constraints/dev.txt; } | sha256sum | cut -c1-16)
    echo "$cache/$key"
}

# environment PYTHON GROUP…: makes or reuses that environment and points it at this checkout.
environment() {
    local python=$1 home group groups=()
    home=$(environment_path "$@")
    shift
    for group in "$@"; do groups+=(--group "$group"); done
    if [ -e "$home/complete" ]; then
        echo "reusing $home"
    else
        # Scripts inside name their folder, so it is made where it stays; the marker tells a whole one from a torn one.
        echo "making $home with $("$python" -V)"
        rm -rf "$home"
        "$python" -m venv "$home"
        install "$home/bin/python" -c constraints/dev.txt pip --group build
        install "$home/bin/python" -c constraints/dev.txt --no-build-isolation -e . "${groups[@]}"
    fi
    "$home/bin/python" -m pip install --quiet --no-deps --no-build-isolation -e .
    touch "$home/complete"
}

# in_environment HOME COMMAND…
in_environment() {
    local home=$1
    shift
    # Without the lock: a process that a test leaks must not hold it.
    PATH=$home/bin:$PATH VIRTUAL_ENV=$home "$@" 9>&-
}
