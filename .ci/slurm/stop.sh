#!/bin/sh
# Stop the Slurm that start.sh started: its jobs, then its daemons, by their pids: stop.sh [FOLDER]
set -u
bed=${1:-${SLURM_BED:-$PWD/.slurm-bed}}
[ -e "$bed/pids" ] || exit 0
bed=$(CDPATH= cd -- "$bed" && pwd)
is_ours() { # PID NAME: still the process that start.sh has started?
    { tr '\0' ' ' < "/proc/$1/cmdline"; } 2>/dev/null | grep -q "$bed"
}
ctld=$(sed -n 's/^slurmctld //p' "$bed/pids")
if [ -n "$ctld" ] && is_ours "$ctld"; then
    SLURM_CONF="$bed/slurm.conf" timeout 5 scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null
    SLURM_CONF="$bed/slurm.conf" timeout 5 scancel --user="$(id -un)" 2>/dev/null
    tries=0 # a step that outlives its slurmd is nobody's
    while [ -n "$(SLURM_CONF="$bed/slurm.conf" timeout 5 squeue -h 2>/dev/null)" ]; do
        tries=$((tries + 1)); [ $tries -lt 50 ] || break
        sleep 0.2
    done
fi
for name in slurmctld slurmd-n1 slurmd-n0 slurmdbd mariadbd munged; do
    pid=$(sed -n "s/^$name //p" "$bed/pids" | tail -n 1)
    [ -n "$pid" ] && is_ours "$pid" || continue
    kill -TERM "$pid" 2>/dev/null
    tries=0
    while is_ours "$pid"; do
        tries=$((tries + 1)); [ $tries -lt 50 ] || kill -KILL "$pid" 2>/dev/null
        [ $tries -lt 60 ] || break
        sleep 0.1
    done
done
for link in /proc/[0-9]*/fd/*; do # steps that are left: slurmstepd with files of this folder
    case $(readlink "$link" 2>/dev/null) in "$bed"/spool-*|"$bed"/slurmd-*)
        pid=${link#/proc/}; pid=${pid%%/*}
        grep -q '^slurmstepd' "/proc/$pid/comm" 2>/dev/null && kill -KILL "$pid" 2>/dev/null;;
    esac
done
rm -f "$bed/pids"
