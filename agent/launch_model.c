/* The model's files for this pod's workers: in place, mounted into the pod, or brought by the
 * node's agent, which says where they are. */
#include "agent/launch_int.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool exists(const char *path)
{
    struct stat st;
    return path && stat(path, &st) == 0;
}

/* A mounted folder that holds one GGUF file means that file. */
static char *one_file_of(const char *path)
{
    struct stat st;
    char *found = NULL;
    size_t n = 0;
    DIR *d = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        if (!str_ends(str_c(ent->d_name), STR(".gguf")))
            continue;
        n++;
        free(found);
        found = xasprintf("%s/%s", path, ent->d_name);
    }
    if (d)
        closedir(d);
    if (n == 1)
        return found;
    free(found);
    return xstrdup(path);
}

/* Children read the model from here (they take file:// only). */
static void use(struct launch *l, char *path)
{
    CLEANUP(free_charp) char *url = xasprintf("file://%s", path);
    free(l->model_path);
    l->model_path = path;
    l->model_asked = false;
    setenv("BATON_MODEL_SOURCE", url, 1);
}

static bool local(struct launch *l)
{
    const char *mounted = getenv("BATON_MODEL_PATH"); /* of a claim or an image volume */
    const char *file = strncmp(l->opt.source, "file://", 7) == 0 ? l->opt.source + 7 : NULL;
    if (mounted && *mounted) {
        use(l, one_file_of(mounted));
        return true;
    }
    if (file && exists(file)) {
        use(l, xstrdup(file));
        return true;
    }
    return false;
}

void launch_ask_model(struct launch *l)
{
    bool hold = l->model_path && l->model_held; /* in use: only count this user */
    if (!l->agent || l->model_asked || (!hold && l->step != STEP_MODEL))
        return;
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:b, s:b}", "type", "model", "source",
                          l->opt.source, "sha256", l->opt.sha256, "infd", l->opt.infd, "hold",
                          (int)hold, "suspect", (int)l->model_suspect);
    l->model_asked = lines_send(l->agent, o, -1) == 0 && !hold;
}

bool launch_model_ready(struct launch *l)
{
    if (l->model_path && !l->model_suspect && exists(l->model_path))
        return true;
    if (!l->model_held && local(l)) {
        l->model_suspect = false;
        return true;
    }
    l->step = STEP_MODEL;
    launch_say(l, "waiting for the node's agent to have the model");
    launch_ask_model(l);
    return false;
}

void launch_on_model(struct launch *l, const json_t *msg)
{
    const char *state = json_str_at(msg, "state", "");
    const char *path = json_str_at(msg, "path", ""), *dir = getenv("BATON_MODELS_DIR");
    if (l->step != STEP_MODEL)
        return;
    if (strcmp(state, "wait") == 0) {
        launch_say(l, "%s", json_str_at(msg, "message", "the node's agent fetches the model"));
    } else if (strcmp(state, "error") == 0) {
        l->model_asked = false;
        worker_failed(l, "ModelUnavailable", 0, 0,
                      json_str_at(msg, "message", "the node's agent has no model"));
    } else if (strcmp(state, "ready") == 0 && *path) {
        use(l, *path == '/' || !dir ? xstrdup(path) : xasprintf("%s/%s", dir, path));
        l->model_held = true;
        l->model_suspect = false;
        log_info("the model is here", LS("path", l->model_path));
        worker_plan(l);
    } else {
        log_warn("the agent's answer about the model is not understood", LS("state", state));
    }
}
