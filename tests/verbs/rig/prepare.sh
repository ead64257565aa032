# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Sourced by the rig's scripts.
#
# peerbus_prepare_guest DIRECTORY: leaves DIRECTORY/kernel/vmlinuz and DIRECTORY/initramfs there, made anew
# only when they are missing or older than what they are made of. Says why not, and returns 1, where
# that cannot be done.

peerbus_rig=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../../install_packages.sh
source "$peerbus_rig/../../install_packages.sh" || exit 1

# Debian keeps some of the tools where only root's PATH looks.
PATH=$PATH:/usr/sbin:/sbin

# "${peerbus_dies_with_this[@]}" COMMAND...: the command dies with the script that started it, even when
# that is killed: the kernel sends the signal, and if the script died before it could be asked for,
# the parent is no longer the script.
# shellcheck disable=SC2016,SC2034
peerbus_dies_with_this=(setpriv --pdeathsig KILL bash -c '[ "$PPID" = "$1" ] && exec "${@:2}"' bash $$)

# Debian's names. iproute2's programs and the provider run in the guest, from the host's root.
peerbus_guest_packages=(qemu-system-x86 busybox-static cpio kmod iproute2 util-linux ibverbs-providers)

# In this order. crc32_generic: without it a soft-RoCE device cannot be added. Not crc32_pclmul: an
# emulated processor takes twice as long over its instructions than over the tables.
peerbus_guest_modules=(virtio_pci virtio_console qemu_fw_cfg virtio_net 9pnet_virtio 9p overlay veth
  crc32_generic ib_uverbs rdma_rxe rdma_ucm)

# Leaves DIRECTORY/kernel/{vmlinuz,modules/...,version} there, from Debian's package, which is not installed.
peerbus_fetch_kernel() (
  local fresh=$1/kernel.partial
  rm -rf "$fresh"
  mkdir -p "$fresh/package" && cd "$fresh" || return 1
  local package=${PEERBUS_GUEST_KERNEL_PACKAGE:-} attempt name
  for attempt in with_lists_as_they_are with_fresh_lists; do
    if [ -n "$package" ]; then break; fi
    if [ $attempt = with_fresh_lists ]; then apt-get -qq update </dev/null >/dev/null 2>&1; fi
    name=$(apt-cache depends linux-image-amd64 2>/dev/null |
      sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    if [ -n "$name" ] && apt-get -qq -o APT::Sandbox::User=root download "$name" </dev/null >download.log 2>&1; then
      package=$(ls "$fresh"/*.deb)
    fi
  done
  if [ -z "$package" ]; then
    echo "peerbus: no kernel for the guest: could not download '${name:-linux-image-amd64}' with apt-get" \
      "(or name a package file in PEERBUS_GUEST_KERNEL_PACKAGE):" >&2
    cat download.log 2>/dev/null >&2
    return 1
  fi
  dpkg -x "$package" package || return 1

  local version listed module
  version=$(ls package/lib/modules)
  cp "package/boot/vmlinuz-$version" vmlinuz || return 1
  depmod -b package "$version" || return 1
  mkdir modules
  for module in "${peerbus_guest_modules[@]}"; do
    listed=$(modprobe -d "$fresh/package" -S "$version" --show-depends "$module") || return 1
    sed -n 's/^insmod \([^ ]*\).*/\1/p' <<<"$listed"
  done | awk '!seen[$0]++' >paths
  [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
  while read -r module; do
    cp "$module" modules/ && basename "$module"
  done <paths >modules/order || return 1
  rm -rf package paths ./*.deb download.log
  printf '%s\n' "$version" "${peerbus_guest_modules[*]}" >version
  rm -rf "$1/kernel"
  mv "$fresh" "$1/kernel"
)

peerbus_build_initramfs() (
  local fresh=$1/initramfs.partial
  rm -rf "$fresh"
  mkdir -p "$fresh"/{bin,dev,proc,sys} || return 1
  cp "$(command -v busybox)" "$fresh/bin/busybox" &&
    cp "$peerbus_rig/init" "$fresh/init" &&
    chmod 755 "$fresh/init" "$fresh/bin/busybox" &&
    cp -r "$1/kernel/modules" "$fresh/modules" || return 1
  cd "$fresh" && find . | cpio --quiet -o -H newc -R 0:0 >"$1/initramfs.cpio" || return 1
  rm -rf "$fresh"
  peerbus_guest_inputs "$1" >"$1/initramfs.inputs.partial"
  mv "$1/initramfs.cpio" "$1/initramfs"
  mv "$1/initramfs.inputs.partial" "$1/initramfs.inputs"
)

peerbus_guest_inputs() {
  sha256sum <"$peerbus_rig/init"
  sha256sum <"$(command -v busybox)"
  cat "$1/kernel/modules/order" "$1/kernel/version"
}

peerbus_prepare_guest() {
  local directory=$1 lock
  if [ "$(uname -m)" != x86_64 ]; then
    echo "peerbus: the guest is an x86-64 machine and runs this host's programs, and this host is $(uname -m)" >&2
    return 1
  fi
  peerbus_need_packages "${peerbus_guest_packages[@]}" >&2 || return 1
  mkdir -p "$directory" || return 1
  # Others that want the same wait here instead of making it a second time.
  exec {lock}>"$directory/lock" || return 1
  flock "$lock" || return 1
  if [ "$(sed -n 2p "$directory/kernel/version" 2>/dev/null)" != "${peerbus_guest_modules[*]}" ] &&
    ! peerbus_fetch_kernel "$directory"; then
    rm -rf "$directory/kernel.partial"
    exec {lock}>&-
    return 1
  fi
  if ! cmp -s <(peerbus_guest_inputs "$directory") "$directory/initramfs.inputs" &&
    ! peerbus_build_initramfs "$directory"; then
    echo "peerbus: could not build the guest's initramfs in $directory" >&2
    exec {lock}>&-
    return 1
  fi
  exec {lock}>&-
}

# peerbus_prepare_or_skip WHAT: as `guest.sh --prepare`, but where no guest can be had it says loudly
# that WHAT was not tested and ends the script with 77 (skipped), or with 1 if the environment has
# CI=true.
peerbus_prepare_or_skip() {
  local why
  if why=$("$peerbus_rig/guest.sh" --prepare 2>&1); then return 0; fi
  echo "$1 NOT TESTED: this host has no RDMA device with an active port, and no guest with soft-RoCE"
  echo "can be had either:"
  # shellcheck disable=SC2001
  sed 's/^/  /' <<<"$why"
  if [ "${CI:-}" = true ]; then exit 1; fi
  exit 77
}
