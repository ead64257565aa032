#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# slurm.sh FOLDER PROGRAM: has Slurm start PROGRAM as four ranks. The controller and one node run on
# this machine, in namespaces of their own: they use no port of the host, and all processes end with
# this script, however it ends. FOLDER is made anew and keeps the logs.
# Status 77 says that they cannot run here: Slurm's daemons and namespaces without a user namespace need
# root.
set -u -o pipefail

if [ "${3:-}" != inside ]; then
  inside=(setpriv --pdeathsig KILL unshare --pid --mount-proc --net --uts --fork --kill-child)
  if ! "${inside[@]}" true; then
    echo "slurm.sh: Slurm's daemons cannot be started apart from the host; expected root, setpriv and unshare" >&2
    exit 77
  fi
  exec "${inside[@]}" bash "$0" "$1" "$2" inside
fi

folder=$1
program=$2
PATH=$PATH:/usr/sbin:/sbin
rm -rf "$folder"
mkdir -p "$folder/spool" "$folder/state" || exit 1
chmod 700 "$folder"
hostname node0
ip link set lo up && ip address add 10.0.0.1/32 dev lo || exit 1 # A loopback address alone is none to Slurm.
echo "10.0.0.1 node0" >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts || exit 1

dd if=/dev/urandom of="$folder/munge.key" bs=128 count=1 status=none
chmod 600 "$folder/munge.key"
cat >"$folder/slurm.conf" <<END
ClusterName=peerbus
SlurmctldHost=node0(10.0.0.1)
NodeName=node0 NodeAddr=10.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES
SlurmUser=root
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
END
echo "PMIxCliTmpDirBase=$folder" >"$folder/mpi.conf"
export SLURM_CONF=$folder/slurm.conf
munged --foreground --force --num-threads 1 --socket "$folder/munge.socket" \
  --key-file "$folder/munge.key" \
  --log-file "$folder/munged.log" --pid-file "$folder/munged.pid" --seed-file "$folder/munged.seed" \
  2>"$folder/munged.err" &
for _ in {1..100}; do [ -S "$folder/munge.socket" ] && break || sleep 0.1; done
slurmctld -D -i 2>"$folder/slurmctld.err" &
slurmd -D 2>"$folder/slurmd.err" &
for _ in {1..300}; do sinfo --noheader --format %T 2>/dev/null | grep -q idle && break || sleep 0.1; done

timeout 60 srun --ntasks 4 --mpi pmix "$program" | tee "$folder/output"
status=$?
# srun ends with 0 also if it could not launch the ranks.
if [ $status -eq 0 ] && [ "$(grep -c '^all checks passed$' "$folder/output")" -eq 4 ]; then exit 0; fi
tail --lines 20 "$folder"/*.err >&2
exit 1
