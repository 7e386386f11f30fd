#!/usr/bin/env bash
#
# Sets up what the tests against real Laravel need: Debian packages on this
# machine, and one directory tree ("root") per Laravel version that the
# machine's own Debian release does not carry; on amd64 also one with MySQL and one with Valkey.
#
#   php-interop/setup.sh              everything, with MariaDB, PostgreSQL, beanstalkd and moto
#   php-interop/setup.sh --host-only  only Redis and PHP, no roots
#   php-interop/setup.sh --redis-only only redis-server, for the demo
#
# It starts no server and leaves none enabled: the tests start their own.
#
# Needs apt and root (uses sudo otherwise). A second run finds everything in
# place, needs no network and takes well under a second. moto comes from PyPI.
#
# Environment:
#   ARTISAND_ROOTS          where the roots live (/var/lib/artisand/roots)
#   ARTISAND_DEBIAN_MIRROR  a mirror of Debian (debootstrap's own default)
#
# Laravel 8 is the package of Debian 12 (bookworm), 10 that of Debian 13
# (trixie), 13 that of Debian 14 (forky). On bookworm, Laravel 8 is used from
# the machine itself; elsewhere it gets a root of its own.

set -euo pipefail

roots=${ARTISAND_ROOTS:-/var/lib/artisand/roots}
mirror=${ARTISAND_DEBIAN_MIRROR:-}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
attempts=3

host_only=no redis_only=no
case "${1-}" in
    '') ;;
    --host-only) host_only=yes ;;
    --redis-only) host_only=yes redis_only=yes ;;
    -h | --help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown option \`$1\` (known: --host-only, --redis-only)" >&2; exit 2 ;;
esac

say() { printf '%-11s %s\n' "$1" "$2"; }
die() { echo "setup.sh: $*" >&2; exit 1; }

# --- who we are -------------------------------------------------------------

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-unknown}")
command -v apt-get >/dev/null || die "this needs a Debian-like system with apt-get"

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || die "not root and no sudo: run this as root"
        sudo -- "$@"
    fi
}

# --- packages of this machine -----------------------------------------------

php=(php-cli php-redis php-mbstring php-xml php-sqlite3 php-mysql php-pgsql php-curl php-pda-pheanstalk)
packages=(redis-server openssl python3 python3-venv "${php[@]}")
if [ "$codename" = bookworm ]; then
    packages+=(php-laravel-framework)
fi
if [ "$redis_only" = yes ]; then
    packages=(redis-server)
fi
if [ "$host_only" = no ]; then
    # The -core packages of MariaDB contain the programs without a service.
    packages+=(mariadb-server-core mariadb-client-core postgresql)
    packages+=(debootstrap debian-archive-keyring)
    # Only its programs are used.
    packages+=(prometheus systemd python3-yaml)
    packages+=(chromium)
    packages+=(beanstalkd)
    # Sets the clock of single processes.
    packages+=(faketime)
fi

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f='${db:Status-Abbrev} ${Version}' "$package" 2>/dev/null || true)
    case "$status" in
        ii*) say found "$package ${status##* }" ;;
        *) missing+=("$package") ;;
    esac
done

# --no-remove: this script must not remove another installed MySQL.
apt_install=(env DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1
    apt-get install -y --no-install-recommends --no-remove)

# Prevents the installation from starting the servers.
install_packages() {
    local policy=/usr/sbin/policy-rc.d clusters=/etc/postgresql-common/createcluster.conf
    local ours=no log
    log=$(mktemp)
    if [[ " ${missing[*]} " == *" postgresql "* ]] && [ ! -e "$clusters" ]; then
        as_root mkdir -p "${clusters%/*}"
        printf '%s\n' "# Written by artisand's php-interop/setup.sh." \
            'create_main_cluster = false' | as_root tee "$clusters" >/dev/null
    fi
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        ours=yes
    fi
    local try status=1
    for ((try = 1; try <= attempts; try++)); do
        if as_root apt-get update >"$log" 2>&1 \
            && as_root "${apt_install[@]}" "${missing[@]}" >>"$log" 2>&1; then
            status=0
            break
        fi
        # One broken foreign repository must not stop the setup.
        if as_root "${apt_install[@]}" "${missing[@]}" >>"$log" 2>&1; then
            status=0
            break
        fi
        sleep $((try * 2))
    done
    [ "$ours" = no ] || as_root rm -f "$policy"
    if [ "$status" != 0 ]; then
        tail -n 30 "$log" >&2
        die "could not install the packages: ${missing[*]} (whole log: $log)"
    fi
    rm -f "$log"
}

disable_service() {
    if [ -d /run/systemd/system ]; then
        as_root systemctl disable --now "$1.service" >/dev/null 2>&1 || true
    elif [ -x "/etc/init.d/$1" ]; then
        as_root update-rc.d "$1" disable >/dev/null 2>&1 || true
    fi
}

if [ ${#missing[@]} -gt 0 ]; then
    install_packages
    for package in "${missing[@]}"; do
        say installed "$package $(dpkg-query -W -f='${Version}' "$package")"
        case "$package" in
            redis-server | postgresql | prometheus | beanstalkd) disable_service "$package" ;;
        esac
    done
fi

[ "$host_only" = no ] || exit 0

# --- SQS --------------------------------------------------------------------

# moto stands for Amazon's server; Debian 12 does not package it.
moto=$roots/moto
if [ -x "$moto/bin/moto_server" ] && "$moto/bin/python" -c 'import moto, flask' 2>/dev/null; then
    say found "moto: $moto"
else
    as_root mkdir -p "$roots"
    for ((try = 1; try <= attempts; try++)); do
        as_root rm -rf "$moto"
        as_root python3 -m venv "$moto" \
            && as_root "$moto/bin/pip" install --quiet --disable-pip-version-check \
                'moto==5.1.16' 'flask==3.1.3' 'flask-cors==6.0.5' && break
        [ "$try" -lt "$attempts" ] || die "could not install moto from PyPI into $moto"
        sleep $((try * 2))
    done
    say installed "moto: $moto"
fi

# --- roots ------------------------------------------------------------------

autoloader=/usr/share/php/Illuminate/autoload.php
extensions=redis,mbstring,dom,pdo_sqlite,pdo_mysql,pdo_pgsql,curl
report='foreach (explode(",", "'$extensions'") as $extension) {
        extension_loaded($extension) || exit(1);
    }
    is_file("/usr/share/php/Pheanstalk/autoload.php") || exit(1);
    require "'$autoloader'";
    echo "Laravel ", Illuminate\Foundation\Application::VERSION, ", PHP ", PHP_VERSION;'

# Prints the versions in a root, fails if it is not complete.
root_works() {
    [ -e "$1/.artisand-complete" ] && as_root chroot "$1" /usr/bin/php -r "$report" 2>/dev/null
}

unmount_below() {
    local target
    while read -r target; do
        as_root umount -l "$target" || true
    done < <(awk -v dir="$1/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}

remove_root() {
    [ -e "$1" ] || return 0
    unmount_below "$1"
    as_root rm -rf --one-file-system "$1"
}

# Files that a root does not need.
trim_root() {
    as_root sh -c 'cd "$1" && rm -rf var/cache/apt/archives/*.deb var/lib/apt/lists/* \
        usr/share/doc/* usr/share/man/* usr/share/locale/*' sh "$1"
}

# Prints the version of MySQL in a root, fails if it is not complete. Tests run the server without a chroot.
mysql_works() {
    local lib=$1/usr/lib/x86_64-linux-gnu
    [ -e "$1/.artisand-complete" ] && "$lib/ld-linux-x86-64.so.2" \
        --library-path "$lib:$1/usr/lib/mysql/private" "$1/usr/sbin/mysqld" --no-defaults --version 2>/dev/null
}

# valkey_works ROOT: prints the version of the root's Valkey.
valkey_works() {
    local lib=$1/usr/lib/x86_64-linux-gnu
    [ -e "$1/.artisand-complete" ] \
        && "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$1/usr/bin/valkey-server" --version 2>/dev/null
}

# complete_root DIR: adds packages that an older setup did not install.
# Like debootstrap, it does not ask how old the mirror is.
complete_root() {
    local dir=$1 log=$roots/$(basename "$1").log
    [ -e "$dir/.artisand-complete" ] || return 1
    as_root cp /etc/resolv.conf "$dir/etc/resolv.conf" 2>/dev/null || true
    as_root sh -c 'log=$1 root=$2; shift 2
        chroot "$root" apt-get -o Acquire::Check-Valid-Until=false update >"$log" 2>&1 \
            && chroot "$root" "$@" >>"$log" 2>&1' \
        sh "$log" "$dir" "${apt_install[@]}" "${php[@]}" php-laravel-framework || return 1
    trim_root "$dir"
    root_works "$dir" >/dev/null || return 1
    as_root rm -f "$log"
}

# build_root SUITE DIR PACKAGES CHECK; prints errors on standard error.
build_root() {
    local suite=$1 dir=$2 include=$3 works=$4 partial=$2.partial script try log
    log=$roots/$(basename "$dir").log

    # A debootstrap older than the suite has no script for it; all Debian
    # suites share one.
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || as_root ln -s sid "$script"

    for ((try = 1; try <= attempts; try++)); do
        remove_root "$partial"
        if as_root debootstrap --variant=minbase --keyring="$keyring" \
            --include="$include" "$suite" "$partial" ${mirror:+"$mirror"} 2>&1 \
            | as_root tee "$log" >/dev/null; then
            unmount_below "$partial"
            trim_root "$partial"
            # Directory for copies of the app, also for users who are not root.
            as_root chmod 1777 "$partial/srv" "$partial/tmp"
            as_root touch "$partial/.artisand-complete"
            if "$works" "$partial" >/dev/null; then
                remove_root "$dir"
                as_root mv -T "$partial" "$dir"
                as_root rm -f "$log"
                return 0
            fi
            echo "setup.sh: $suite was unpacked, but $works says no" >&2
        fi
        sleep $((try * 2))
    done
    tail -n 5 "$log" >&2
    if [ -e "$partial/debootstrap/debootstrap.log" ]; then
        tail -n 10 "$partial/debootstrap/debootstrap.log" >&2
    fi
    echo "setup.sh: could not make $dir from Debian $suite${mirror:+ at $mirror} (log: $log)" >&2
    return 1
}

laravel() { echo "${php[*]} php-laravel-framework" | tr ' ' ,; }

# Each of the wanted roots: name, suite, packages, check.
wanted=()
if [ "$codename" = bookworm ]; then
    versions=$(php -r "$report") || die "PHP on this machine cannot load $autoloader"
    say found "laravel-8: this machine ($versions)"
else
    wanted+=("laravel-8 bookworm $(laravel) root_works")
fi
wanted+=("laravel-10 trixie $(laravel) root_works" "laravel-13 forky $(laravel) root_works")
# MySQL is only in Debian sid. Both servers are started by the amd64 loader of their root.
if [ "$(dpkg --print-architecture)" = amd64 ]; then
    wanted+=("mysql sid mysql-server-core mysql_works" "valkey trixie valkey-server valkey_works")
fi

as_root mkdir -p "$roots"

# Only one run builds at a time; the others then find the result. The lock is
# taken only when something is to be built, so that a plain check is quick and
# needs no write access.
missing_roots=()
for entry in "${wanted[@]}"; do
    read -r name suite include works <<<"$entry"
    if versions=$("$works" "$roots/$name"); then
        say found "$name: $roots/$name ($versions)"
    else
        missing_roots+=("$entry")
    fi
done
[ ${#missing_roots[@]} -gt 0 ] || exit 0

as_root touch "$roots/.lock"
as_root chmod 666 "$roots/.lock"
exec 9<>"$roots/.lock"
flock 9

jobs=()
for entry in "${missing_roots[@]}"; do
    (
        read -r name suite include works <<<"$entry"
        dir=$roots/$name
        "$works" "$dir" >/dev/null \
            || { [ "$works" = root_works ] && complete_root "$dir"; } \
            || build_root "$suite" "$dir" "$include" "$works"
    ) 9>&- &
    jobs+=("$!")
done
failed=()
for index in "${!jobs[@]}"; do
    read -r name suite include works <<<"${missing_roots[$index]}"
    if wait "${jobs[$index]}"; then
        say installed "$name: $roots/$name ($("$works" "$roots/$name"))"
    else
        failed+=("$name (Debian $suite)")
    fi
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
