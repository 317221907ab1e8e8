#!/bin/bash
# pki.sh DIR IP: the cluster's certificate authorities, certificates and kubeconfigs (short-lived, elliptic curve), made by openssl.
# pki.sh DIR IP node NAME NODE_IP: a node's, later.
set -euo pipefail
mkdir -p "$1/pki"
cd "$1/pki"
server=https://$2:6443

authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout "$1.key" -out "$1.crt" \
    -subj "/CN=$1" -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
}
certificate() { # NAME AUTHORITY SUBJECT USAGE [SUBJECT_ALT_NAMES]
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$3" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -set_serial "0x$(openssl rand -hex 8)" -days 30 -out "$1.crt" 2>/dev/null \
    -extfile <(printf 'keyUsage=digitalSignature\nextendedKeyUsage=%s\n%s' "$4" "${5:+subjectAltName=$5}")
  rm "$1.csr"
}
kubeconfig() { # NAME SUBJECT
  [ -f "$1.crt" ] || certificate "$1" ca "$2" clientAuth
  cat >"$1.conf" <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "$server", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: u, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
K
}

if [ "${3:-}" = node ]; then
  certificate "$4" ca "/O=system:nodes/CN=system:node:$4" clientAuth,serverAuth "DNS:$4,IP:$5"
  kubeconfig "$4" -
  exit
fi
authority ca
authority front-proxy-ca
certificate apiserver ca /CN=kube-apiserver serverAuth \
  "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:10.96.0.1,IP:$2"
certificate apiserver-kubelet ca /O=system:masters/CN=apiserver-kubelet clientAuth
certificate front-proxy-client front-proxy-ca /CN=front-proxy-client clientAuth
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
kubeconfig admin /O=system:masters/CN=admin
kubeconfig controller-manager /CN=system:kube-controller-manager
kubeconfig scheduler /CN=system:kube-scheduler
kubeconfig proxy /CN=system:kube-proxy
