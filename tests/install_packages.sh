# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Sourced by tests/run.sh and examples/quickstart.sh.
#
# peerbus_need_packages PACKAGE...: makes sure that what these Debian packages bring is there.
# Installs what is missing where root or a sudo without a password allows it; else names it and
# returns 1. What was installed by other means than the package counts as well.

peerbus_has_header() {
  echo "#include <$1>" | g++ -std=c++20 -x c++ -E - >/dev/null 2>&1
}

peerbus_has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
  [ -n "$version" ] && printf '3.25\n%s\n' "$version" | sort -C -V
}

# Some of them are in root's PATH only.
peerbus_has_tools() {
  local tool
  for tool in "$@"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || return 1
  done
}

peerbus_has_static() {
  local program
  program=$(command -v "$1") && ! ldd "$program" >/dev/null 2>&1
}

peerbus_has_package() {
  case $1 in
    abigail-tools) peerbus_has_tools abidiff ;;
    cmake) peerbus_has_cmake ;;
    libmpich-dev) peerbus_has_tools mpicxx.mpich ;;
    mpich) peerbus_has_tools mpirun.mpich ;;
    ninja-build) command -v ninja >/dev/null ;;
    clang) command -v clang++ >/dev/null ;;
    doxygen | g++ | pkg-config | python3 | clang-format-* | clang-tidy-*) command -v "$1" >/dev/null ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ >/dev/null ;;
    qemu-user) command -v qemu-aarch64 >/dev/null ;;
    qemu-system-x86) command -v qemu-system-x86_64 >/dev/null ;;
    busybox-static) peerbus_has_static busybox ;;
    cpio) command -v cpio >/dev/null ;;
    kmod) peerbus_has_tools depmod modprobe ;;
    iproute2) peerbus_has_tools ip rdma ;;
    util-linux) peerbus_has_tools setpriv flock ;;
    perftest) peerbus_has_tools ib_write_lat ib_write_bw ;;
    libibverbs-dev) peerbus_has_header infiniband/verbs.h ;;
    ibverbs-providers) compgen -G '/usr/lib*/*/libibverbs/librxe-rdmav*.so' >/dev/null ;;
    doctest-dev) peerbus_has_header doctest/doctest.h ;;
    libbenchmark-dev) peerbus_has_header benchmark/benchmark.h ;;
    libcli11-dev) peerbus_has_header CLI/CLI.hpp ;;
    nlohmann-json3-dev) peerbus_has_header nlohmann/json.hpp ;;
    libhwloc-dev) peerbus_has_header hwloc.h ;;
    libssl-dev) peerbus_has_header openssl/ssl.h ;;
    *) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q ' installed$' ;;
  esac
}

peerbus_missing_packages() {
  local package
  for package in "$@"; do
    peerbus_has_package "$package" || echo "$package"
  done
}

peerbus_need_packages() {
  local missing as_root=()
  mapfile -t missing < <(peerbus_missing_packages "$@")
  [ ${#missing[@]} -eq 0 ] && return 0

  if ! command -v apt-get >/dev/null; then
    echo "peerbus: missing: ${missing[*]} (Debian's names); there is no apt-get here, so please install them" >&2
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "peerbus: missing packages, and neither root nor sudo without a password to install them with. Please run:" >&2
      echo "  sudo apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo -n)
  fi
  echo "peerbus: installing ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  local log
  log=$(mktemp)
  # The lists may be absent or old; old ones still serve when the network is away.
  "${apt[@]}" update </dev/null >"$log" 2>&1 || true
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >>"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "peerbus: could not install ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"

  mapfile -t missing < <(peerbus_missing_packages "$@")
  if [ ${#missing[@]} -ne 0 ]; then
    echo "peerbus: apt-get had no error, but these are still missing or too old: ${missing[*]}" >&2
    return 1
  fi
}
