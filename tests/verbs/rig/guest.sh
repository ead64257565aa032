#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a command in a guest that has a soft-RoCE device, rxe0, on the address 10.9.0.1:
#   guest.sh [--cpus N] [--memory MiB] [--timeout S] [--out DIR] -- COMMAND [ARGUMENT...]
#   guest.sh --prepare         only makes what a guest is booted from
#
# The command sees this host's files, the working directory and the environment of the caller; what it
# writes is gone with the guest, unless it is under DIR, which is the host's. It is root and alone
# there. Its output, both streams, comes out here, and so does its exit status. Otherwise:
#   124  the guest was still there after S seconds (default 300)
#   125  it did not boot, panicked or ended before the command did; or the arguments here are wrong
# and the end of its console is shown. docs/verbs_rig.md has more.
#
#   --wire listen=NAME | connect=NAME   instead of a device of its own, an Ethernet port: two guests
#                                       with the same NAME are on one wire (see two_hosts.sh)
#   --address ADDRESS                   default 10.9.0.1/24
#   PEERBUS_GUEST_DIR                   where kernel and initramfs are kept (default build/verbs-guest)
#   PEERBUS_GUEST_CPU                   qemu's -cpu (default max,-erms,-fsrm: an emulated `rep movsb` goes
#                                       byte by byte, and these make it every copy's choice; for the same
#                                       reason the kernel is told that no `rep` is good)
#   PEERBUS_GUEST_ACCEL                 qemu's -accel (default tcg,thread=multi: guests may hang under a
#                                       KVM that is itself in a guest)

set -u -o pipefail
# shellcheck source-path=SCRIPTDIR source=prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh" || exit 125

stop() {
  echo "guest.sh: $*" >&2
  exit 125
}

cpus=2
memory=2048
seconds=300
out=""
wire=""
address=10.9.0.1/24
prepare_only=no
directory=${PEERBUS_GUEST_DIR:-$(cd "$peerbus_rig/../../.." && pwd)/build/verbs-guest}

number() { [[ $2 =~ ^[1-9][0-9]*$ ]] || stop "$1 takes a positive number, not '$2'"; }
while [ $# -gt 0 ]; do
  case $1 in
    --prepare) prepare_only=yes; shift; continue ;;
    --) shift; break ;;
    --*) [ $# -ge 2 ] || stop "$1 lacks its value" ;;
  esac
  case $1 in
    --cpus) number "$1" "$2"; cpus=$2 ;;
    --memory) number "$1" "$2"; memory=$2 ;;
    --timeout) number "$1" "$2"; seconds=$2 ;;
    --out) if ! out=$(realpath -e -- "$2") || [ ! -d "$out" ]; then stop "--out $2 is not a directory"; fi ;;
    --wire) [[ $2 =~ ^(listen|connect)=[A-Za-z0-9._-]+$ ]] || stop "--wire takes listen=NAME or connect=NAME, not '$2'"; wire=$2 ;;
    --address) address=$2 ;;
    *) stop "what is '$1'? Expected: [--cpus N] [--memory MiB] [--timeout S] [--out DIR] -- COMMAND..." ;;
  esac
  shift 2
done
if [ $prepare_only = no ] && [ $# -eq 0 ]; then stop "no command given"; fi

peerbus_prepare_guest "$directory" || exit 125
if [ $prepare_only = yes ]; then exit 0; fi

# What the guest asks for: a few options, and a script for bash.
options() {
  printf '%s\n' "address=$address" "out=$out" "wire=$([ -n "$wire" ] && echo yes || echo no)" \
    "hostname=peerbus-$(tr ./ -- <<<"$address")"
}
script() {
  export -p
  printf 'cd -- %q || exit 125\n' "$PWD"
  printf 'exec --'
  printf ' %q' "$@"
  echo
}

# A pipe without a name, in two variables: nothing to remove, whoever is killed.
new_pipe() { # READ_END WRITE_END
  local both
  exec {both}<> <(:)
  eval "exec {$1}</proc/self/fd/$both {$2}>/proc/self/fd/$both"
  exec {both}>&-
}
control_read="" control_write="" output_read="" output_write="" # new_pipe sets them.
new_pipe control_read control_write
new_pipe output_read output_write
# The console goes to a file that has lost its name.
console=$(mktemp) || stop "no place for the console"
exec {console_write}>"$console"
exec {console_read}<"$console"
rm -f "$console"

if [ -n "$wire" ]; then
  # RoCE packets do not survive offloads. A Unix socket, as qemu's TCP sockets hold small frames back
  # until earlier ones are acknowledged (28 ms each way, and soft-RoCE sends them again); one without
  # a name in the file system, as that leaves nothing behind.
  if [[ $wire = listen=* ]]; then server=on mac=52:54:00:09:00:01; else server=off mac=52:54:00:09:00:02; fi
  net=(-netdev "stream,id=wire,server=$server,addr.type=unix,addr.path=peerbus-${wire#*=},addr.abstract=on"
    -device "virtio-net-pci,netdev=wire,romfile=,mac=$mac,csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,mrg_rxbuf=off")
else
  net=(-nic none)
fi
share=()
if [ -n "$out" ]; then
  share=(-virtfs "local,path=${out//,/,,},mount_tag=out,security_model=none,multidevs=remap")
fi

# shellcheck disable=SC2054
qemu=(qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -monitor none
  -machine pc -accel "${PEERBUS_GUEST_ACCEL:-tcg,thread=multi}" -cpu "${PEERBUS_GUEST_CPU:-max,-erms,-fsrm}" -smp "$cpus" -m "$memory"
  -kernel "$directory/kernel/vmlinuz" -initrd "$directory/initramfs"
  -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on nokaslr no5lvl clearcpuid=rep_good tsc=reliable no_timer_check"
  -add-fd "fd=$console_write,set=1" -chardev file,id=console,path=/dev/fdset/1,append=on -serial chardev:console
  -device virtio-serial-pci
  -add-fd "fd=$control_write,set=2" -chardev file,id=control,path=/dev/fdset/2,append=on
  -device virtserialport,chardev=control,nr=1
  -add-fd "fd=$output_write,set=3" -chardev file,id=output,path=/dev/fdset/3,append=on
  -device virtserialport,chardev=output,nr=2
  -virtfs "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"
  "${share[@]}" "${net[@]}")

cat <&"$output_read" {control_read}<&- {control_write}>&- {output_write}>&- &
cat=$!

exec {options_read}< <(options) {script_read}< <(script "$@")
"${peerbus_dies_with_this[@]}" "${qemu[@]}" \
  -fw_cfg "name=opt/peerbus/options,file=/proc/self/fd/$options_read" \
  -fw_cfg "name=opt/peerbus/command,file=/proc/self/fd/$script_read" \
  </dev/null >&"$console_write" 2>&1 {control_read}<&- {output_read}<&- {console_read}<&- &
guest=$!
exec {control_write}>&- {output_write}>&- {options_read}<&- {script_read}<&- {output_read}<&-

# shellcheck disable=SC2317
finish() {
  kill -KILL "$guest" 2>/dev/null
  { wait; } 2>/dev/null # Without the shell's own note that it was killed.
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

explain() {
  echo "guest.sh: $*" >&2
  echo "guest.sh: the end of the guest's console:" >&2
  tail -n 40 <&"$console_read" | tr -d '\r' | sed 's/^/  | /' >&2
}

state=booting
status=""
deadline=$((SECONDS + seconds))
timed_out=no
while :; do
  left=$((deadline - SECONDS))
  if [ $left -le 0 ]; then timed_out=yes; break; fi
  if IFS= read -r -t "$left" -u "$control_read" line; then
    case $line in
      booted) state=running ;;
      status\ *)
        status=${line#status }
        deadline=$((SECONDS + 10)) # To power off.
        ;;
      failed\ *) state="failing: ${line#failed }" ;;
    esac
  elif [ $? -le 128 ]; then
    break # The end: there is no guest any more.
  fi
done
kill -KILL "$guest" 2>/dev/null
{ wait "$guest"; } 2>/dev/null
wait "$cat"

if [ -n "$status" ]; then exit "$status"; fi
if [ $timed_out = yes ]; then
  case $state in
    booting) explain "the guest did not boot within $seconds s" ;;
    *) explain "the command did not end within $seconds s" ;;
  esac
  exit 124
fi
panic=""
if grep -q 'Kernel panic' <&"$console_read"; then panic=" with a kernel panic"; fi
exec {console_read}<"/dev/fd/$console_read"
case $state in
  failing*) explain "the guest gave up: ${state#failing: }" ;;
  booting) explain "the guest ended$panic before it had booted" ;;
  *) explain "the guest ended$panic before the command did" ;;
esac
exit 125
