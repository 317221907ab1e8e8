#!/bin/bash
# node.sh DIR INDEX: a node of the cluster in DIR: kubelet, containerd, runc, bridge CNI and kube-proxy in namespaces of their own, on an
# address of its own. Runs inside the control plane's namespaces. What a kubelet writes to /proc/sys of the whole machine goes to private files.
set -u
D=$1 I=$2 N=node$2 HERE=$(cd "$(dirname "$0")" && pwd)
IP=10.200.0.$((10 + I)) PODS=10.244.$I W=$D/node$2
. "$HERE/lib.sh"
containerd_socket=/run/containerd/containerd.sock

# The node's network and certificate; then this script again as pid 1 of the node.
outside() {
  mkdir -p "$W"/{var/lib/kubelet,var/lib/cni,var/lib/baton/models,var/log,var/tmp,net.d,sysctl,containerd}
  ln -s /run "$W/var/run"
  mkdir -p /run/netns
  ip netns del $N 2>/dev/null
  ip link del v$I 2>/dev/null
  ip netns add $N && ip link add v$I type veth peer name eth0 netns $N || fail "cannot make a network namespace with a veth pair"
  ip link set v$I master node0 up
  ip -n $N link set lo up
  ip -n $N addr add $IP/24 dev eth0
  ip -n $N link set eth0 up
  ip -n $N route add default via 10.200.0.1
  # Every node knows the way to the pods of all others, present or future.
  for j in $(seq 1 9); do
    [ "$j" = "$I" ] || ip -n $N route add 10.244.$j.0/24 via 10.200.0.$((10 + j))
  done
  ip route replace $PODS.0/24 via $IP
  bash "$HERE/pki.sh" "$D" 10.200.0.1 node $N $IP || fail "openssl could not make the certificate of $N"
  join_cgroup $N root
  exec nsenter --net=/run/netns/$N unshare --mount --pid --fork --kill-child --mount-proc --ipc --uts --cgroup \
    bash "$HERE/node.sh" "$D" "$I" inside
}

private_files() {
  mount --make-rshared /
  mount --bind "$W/var" /var
  mount --make-shared /var
  mount -t tmpfs -o mode=755 tmpfs /run
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  local setting file
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 \
    kernel/keys/root_maxbytes=25000000; do
    file=$W/sysctl/$(tr / . <<<"${setting%=*}")
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}" || fail "cannot mask /proc/sys/${setting%=*}"
  done
  echo 1 >/proc/sys/net/ipv4/ip_forward
}

write_configs() {
  cat >"$W/net.d/10-bridge.conflist" <<J
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
J
  cat >"$W/containerd.toml" <<T
version = 3
root = "$W/containerd"
state = "/run/containerd"
[grpc]
  address = "$containerd_socket"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "baton.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$W/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
  BinaryName = "runc"
T
  cat >"$W/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $D/pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $D/pki/$N.crt
tlsPrivateKeyFile: $D/pki/$N.key
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://$containerd_socket
maxOpenFiles: 20000
oomScoreAdj: 0
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
featureGates: {KubeletInUserNamespace: true}
nodeLeaseDurationSeconds: 8
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
Y
}

run_node() {
  hostname $N
  own_cgroups
  private_files
  write_configs
  containerd -c "$W/containerd.toml" >"$W/containerd.log" 2>&1 &
  within 60 "containerd of $N (see $W/containerd.log)" ctr -a $containerd_socket version
  local image
  for image in "$D"/images/*.tar; do
    ctr -a $containerd_socket -n k8s.io images import "$image" >/dev/null || fail "$N cannot import $image"
  done
  kubelet --config="$W/kubelet.yaml" --kubeconfig="$D/pki/$N.conf" --node-ip=$IP --hostname-override=$N --v=1 >"$W/kubelet.log" 2>&1 &
  kube-proxy --kubeconfig="$D/pki/proxy.conf" --hostname-override=$N --cluster-cidr=10.244.0.0/16 --proxy-mode=iptables \
    --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s \
    --bind-address=$IP >"$W/proxy.log" 2>&1 &
  trap 'exit 0' TERM
  while :; do wait -n || sleep 1; done
}

if [ "${3:-}" = inside ]; then run_node; else outside; fi
