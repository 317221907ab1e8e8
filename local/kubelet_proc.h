/* kubelet_proc.h: processes named safely and small files written safely.
 *
 * A process is (pid, start time in clock ticks since boot): a pid alone may have been reused.
 * Signals go through a pidfd that was opened before the start time was compared, so they can't hit
 * a stranger. Files are replaced by rename, so a reader sees the old text or the new one. Any
 * thread. */
#pragma once
#include "lib/json/json.h"

#include <sys/types.h>

struct proc_id {
    pid_t pid;
    uint64_t start; /* field 22 of /proc/<pid>/stat */
};

/* Start time of a running process; -ESRCH when there is none (a zombie counts as none). */
int proc_start_time(pid_t pid, uint64_t *out) MUST_CHECK;
bool proc_alive(struct proc_id id);
/* 0, or -ESRCH when that process is gone. */
int proc_signal(struct proc_id id, int sig);
/* A pidfd of exactly this process (readable when it has ended), or -ESRCH. */
int proc_open(struct proc_id id) MUST_CHECK;
/* SIGKILL to every descendant of `pid` that /proc shows, deepest last; returns how many were
 * signalled. */
int proc_kill_tree(pid_t pid);
/* pids whose environment's first entries hold `entry` ("NAME=value") are found by scanning /proc;
 * calls fn for each. */
void proc_each_with_env(const char *entry, void (*fn)(struct proc_id id, void *ctx), void *ctx);

/* Replaces path by the text (mode bits given); durable only against a killed process, not against a
 * power cut. */
int file_replace(const char *path, struct str text, mode_t mode) MUST_CHECK;
int file_replace_json(const char *path, const json_t *o) MUST_CHECK;
int dir_make(const char *path, mode_t mode, struct err *e) MUST_CHECK; /* with parents */
void dir_remove(const char *path); /* recursive; never follows links */
