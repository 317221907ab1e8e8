#!/bin/bash
# control.sh DIR NAME: a Kubernetes control plane in mount, network, pid, ipc, uts and cgroup namespaces of its own. Everything in them,
# nodes and containers too, dies with this process; `$DIR/ready` appears once the API server answers. Settings: $DIR/settings.
set -u
D=$1 NAME=$2 HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
if [ "${3:-}" != inside ]; then
  join_cgroup "$NAME" here
  exec unshare --mount --net --pid --fork --kill-child --mount-proc --ipc --uts --cgroup bash "$0" "$D" "$NAME" inside
fi
IP=10.200.0.1 P=$D/pki L=$D/log
apiserver_args="" controller_manager_args="" scheduler_args=""
. "$D/settings"
mkdir -p "$L"
hostname control
mount --make-rshared /
own_cgroups
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
# Nodes hang on this bridge; the default route exists only because the API server wants one.
ip link add node0 type bridge && ip addr add $IP/24 dev node0 && ip link set node0 up || fail "cannot make a network bridge"
ip route add default via 10.200.0.254 dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
bash "$HERE/pki.sh" "$D" $IP || fail "openssl could not make the certificates"

etcd --data-dir "$D/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync --quota-backend-bytes 8589934592 --log-level warn >"$L/etcd.log" 2>&1 &
echo $! >"$D/etcd.pid"
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=$IP --advertise-address=$IP --secure-port=6443 \
  --tls-cert-file="$P/apiserver.crt" --tls-private-key-file="$P/apiserver.key" --client-ca-file="$P/ca.crt" \
  --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$P/sa.pub" \
  --service-account-signing-key-file="$P/sa.key" --service-cluster-ip-range=10.96.0.0/16 \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  --kubelet-client-certificate="$P/apiserver-kubelet.crt" --kubelet-client-key="$P/apiserver-kubelet.key" \
  --kubelet-certificate-authority="$P/ca.crt" --kubelet-preferred-address-types=InternalIP \
  --requestheader-client-ca-file="$P/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
  --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
  --requestheader-extra-headers-prefix=X-Remote-Extra- --proxy-client-cert-file="$P/front-proxy-client.crt" \
  --proxy-client-key-file="$P/front-proxy-client.key" --enable-aggregator-routing=true \
  $apiserver_args >"$L/apiserver.log" 2>&1 &
echo $! >"$D/apiserver.pid"
export KUBECONFIG=$P/admin.conf
within 120 "kube-apiserver (see $L/apiserver.log)" kubectl get --raw /readyz
kube-controller-manager --kubeconfig="$P/controller-manager.conf" --authentication-kubeconfig="$P/controller-manager.conf" \
  --authorization-kubeconfig="$P/controller-manager.conf" --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials \
  --service-account-private-key-file="$P/sa.key" --root-ca-file="$P/ca.crt" --cluster-signing-cert-file="$P/ca.crt" \
  --cluster-signing-key-file="$P/ca.key" --allocate-node-cidrs=false $controller_manager_args >"$L/controller-manager.log" 2>&1 &
echo $! >"$D/controller-manager.pid"
kube-scheduler --kubeconfig="$P/scheduler.conf" --authentication-kubeconfig="$P/scheduler.conf" \
  --authorization-kubeconfig="$P/scheduler.conf" --bind-address=127.0.0.1 --leader-elect=false $scheduler_args >"$L/scheduler.log" 2>&1 &
echo $! >"$D/scheduler.pid"
within 60 "kube-controller-manager (see $L/controller-manager.log)" kubectl get serviceaccount default
touch "$D/ready"
trap 'exit 0' TERM
while :; do wait -n || sleep 1; done
