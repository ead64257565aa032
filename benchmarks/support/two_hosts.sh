#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# For scripts that measure between two hosts: network and UTS namespaces that a pair of virtual
# interfaces, far0 and far1, joins. They end with the script. Takes root.
#   source benchmarks/support/two_hosts.sh; become_two_hosts SCRIPT [ARGUMENT]...
# The caller is then on the first host, 10.77.0.1, and `on_second COMMAND...` runs on 10.77.0.2.

PATH=$PATH:/usr/sbin:/sbin

become_two_hosts() {
  if [ -z "${PEERBUS_TWO_HOSTS:-}" ]; then
    export PEERBUS_TWO_HOSTS=first
    exec unshare --net --uts --pid --fork --kill-child --mount-proc bash "$@"
  fi
  # This shell is on the first host. A process that sleeps keeps the second one.
  hostname first
  unshare --net --uts sleep infinity &
  second=$!
  until [ "$(readlink "/proc/$second/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  {
    on_second hostname second &&
      ip link add far0 type veth peer name far1 netns "$second" &&
      ip address add 10.77.0.1/24 dev far0 && ip link set far0 up && ip link set lo up &&
      on_second ip address add 10.77.0.2/24 dev far1 && on_second ip link set far1 up &&
      on_second ip link set lo up
  } || exit 1
  # Before, libfabric takes the loopback interface for the only one.
  until ip link show far0 | grep -q "state UP" && on_second ip link show far1 | grep -q "state UP"; do sleep 0.01; done
}

on_second() { nsenter --target "$second" --net --uts -- "$@"; }
