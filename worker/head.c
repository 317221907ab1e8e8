/* GET /v1/internal/model: what a router needs of the model's files, tokenizer and shape, wherever
 * the files lie. `?list` names them (a JSON array), `?file=NAME` is one, with ranges: a router
 * takes the head of a GGUF file only. */
#include "worker/head.h"

#include "lib/json/json.h"

#include <dirent.h>
#include <sys/stat.h>

#define LISTED_MAX 64

static bool small_text(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".txt", ".model"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (name[0] != '.' && str_ends(str_c(name), (struct str){ends[i], strlen(ends[i])}))
            return true;
    return false;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* New array: the file itself, or what is text in the folder. */
static json_t *names_of(const char *path)
{
    struct stat st;
    json_t *names = json_array();
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        json_array_append_new(names, json_string(base_name(path)));
    DIR *d = json_array_size(names) ? NULL : opendir(path);
    struct dirent *x;
    while (d && (x = readdir(d)) && json_array_size(names) < LISTED_MAX)
        if (small_text(x->d_name))
            json_array_append_new(names, json_string(x->d_name));
    if (d)
        closedir(d);
    return names;
}

void head_reply(struct httpd_req *req, const char *path)
{
    const char *file = httpd_arg(req, "file");
    CLEANUP(json_decrefp) json_t *names = path ? names_of(path) : json_array();
    size_t i;
    json_t *x;
    if (!file) {
        struct buf b;
        buf_init(&b, 1u << 16);
        if (json_write(names, false, &b) == 0)
            httpd_reply(req, 200, "application/json", buf_view(&b));
        else
            httpd_replyf(req, 500, "text/plain", "too many files\n");
        buf_fini(&b);
        return;
    }
    json_array_foreach (names, i, x) {
        if (strcmp(json_string_value(x), file) != 0)
            continue;
        bool folder = strcmp(base_name(path), file) != 0;
        CLEANUP(free_charp) char *full = folder ? xasprintf("%s/%s", path, file) : xstrdup(path);
        httpd_reply_path(req, full, NULL);
        return;
    }
    httpd_replyf(req, 404, "text/plain", "the model has no such file\n");
}
