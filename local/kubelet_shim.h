/* kubelet_shim.h: the small process that stands between the kubelet and one container, so that a
 * container outlives a kill -9 of baton-local and its exit code and output are never lost
 * (containerd's shims do the same).
 *
 * `baton-local shim` is started with the attempt's folder as its working directory, the spec on
 * stdin and a locked file as fd 3: the lock lives exactly as long as the shim. It writes run.json
 * {"shim":{"pid","start"},"main":{"pid","start"},"started":wall_ns}    once the command runs
 *   exit.json  {"code","signal","reason","message","started","finished"}            when all of it
 * has ended log, log.1 lines as the CRI has them: "<RFC 3339 nano> stdout|stderr F|P <text>" The
 * command runs in a session of its own, dies with the shim (PR_SET_PDEATHSIG), and what it leaves
 * behind is killed when it ends (the shim is a subreaper): a container has no orphans.
 *
 * Spec: {"argv":[…],"file":path of the
 * program,"env":["K=V",…],"cwd":path,"log":path,"log_bytes":n}. Single-threaded. */
#pragma once

#define SHIM_LOCK_FD 3

int shim_main(void);
