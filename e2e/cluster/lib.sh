# Shared by control.sh and node.sh, which run as pid 1 of namespaces of their own.
CONTROLLERS="cpu cpuacct cpuset memory devices freezer blkio pids"

fail() {
  echo "$*" >>"$D/failed"
  echo "$*" >&2
  exit 1
}

# own_cgroups: mounts this cgroup namespace's hierarchies (v1 with its controllers, or v2) at /sys/fs/cgroup.
own_cgroups() {
  local v2=0 c
  [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] && v2=1
  umount -R /sys/fs/cgroup
  mount -t sysfs sysfs /sys
  if [ $v2 = 1 ]; then
    mount -t cgroup2 cgroup /sys/fs/cgroup
    return
  fi
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  for c in $CONTROLLERS; do
    mkdir "/sys/fs/cgroup/$c"
    mount -t cgroup -o "$c" cgroup "/sys/fs/cgroup/$c" || fail "the kernel has no cgroup controller $c"
  done
  mkdir /sys/fs/cgroup/systemd # containerd and runc look for it
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd || fail "the kernel has no named cgroup hierarchies"
}

# join_cgroup NAME here|root: a cgroup NAME in every hierarchy, below this process's own or below the mounted root; this process in it.
join_cgroup() {
  local c g own=
  if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
    join_cgroup2 "$1"
    return
  fi
  for c in $CONTROLLERS; do
    [ "$2" = root ] || own=$(awk -F: -v c="$c" '{n = split($2, a, ","); for (i = 1; i <= n; i++) if (a[i] == c) print $3}' /proc/self/cgroup)
    g=/sys/fs/cgroup/$c${own%/}/$1
    mkdir -p "$g" || fail "cannot make the cgroup $g"
    if [ "$c" = cpuset ]; then
      cat "$g/../cpuset.cpus" >"$g/cpuset.cpus"
      cat "$g/../cpuset.mems" >"$g/cpuset.mems"
    fi
    echo 0 >"$g/cgroup.procs" || fail "cannot join the cgroup $g"
  done
}
# On cgroup v2, controllers reach children only from a cgroup without processes (or the machine's root): what is there moves to a leaf.
join_cgroup2() {
  local top=/sys/fs/cgroup c p
  if ! echo "+cpu +memory +pids" 2>/dev/null >$top/cgroup.subtree_control; then
    mkdir -p $top/rest
    for p in $(cat $top/cgroup.procs); do echo "$p" 2>/dev/null >$top/rest/cgroup.procs; done
  fi
  for c in cpu cpuset memory pids io; do echo "+$c" 2>/dev/null >$top/cgroup.subtree_control; done
  mkdir -p "$top/$1" && echo 0 >"$top/$1/cgroup.procs" || fail "cannot make the cgroup $top/$1"
}

# within SECONDS WHAT COMMAND...: waits for the command to succeed
within() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt "$end" ] || fail "$what: not within time"
    sleep 0.2
  done
}
