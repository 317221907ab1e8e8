#include "lib/fetch/source.h"

#include "lib/fetch/sha.h"

#include <errno.h>
#include <stdio.h>

bool source_name_safe(struct str name)
{
    struct str part, rest = name;
    if (name.n == 0 || name.n > 255 || name.p[0] == '/' || name.p[name.n - 1] == '/')
        return false;
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] < 0x20 || name.p[i] == 0x7f || name.p[i] == '\\')
            return false;
    while (rest.n) {
        rest = str_cut(rest, '/', &part);
        if (part.n == 0 || part.p[0] == '.')
            return false;
    }
    return true;
}

static int copy(char *out, size_t size, struct str s, const char *what, struct err *e)
{
    if (s.n >= size)
        return err_set(e, EINVAL, "the model source's %s is longer than %zu characters", what,
                       size - 1);
    memcpy(out, s.p, s.n);
    out[s.n] = 0;
    return 0;
}

/* What may stand in a URL that we build: no white space, quotes, '?', '#' or '%'. */
static bool url_safe(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c <= 0x20 || c >= 0x7f || strchr("\"'<>?#%\\^`{|}", c))
            return false;
    }
    return true;
}

/* org/repo[/path][@revision]; the revision may hold slashes (refs/pr/1). */
static int parse_hf(struct str s, struct source *out, struct err *e)
{
    struct str rest = s, org, repo, revision = STR("main");
    for (size_t i = s.n; i > 0; i--) {
        if (s.p[i - 1] == '@') {
            revision = (struct str){s.p + i, s.n - i};
            rest.n = i - 1;
            break;
        }
    }
    const char *begin = rest.p;
    rest = str_cut(rest, '/', &org);
    rest = str_cut(rest, '/', &repo);
    if (!org.n || !repo.n || !revision.n || org.p[0] == '.' || repo.p[0] == '.' || !url_safe(s))
        return err_set(e, EINVAL, "%s is not hf://org/repo[/file][@revision]", out->text);
    if (rest.n && !source_name_safe(rest))
        return err_set(e, EINVAL, "%s: the file's path must lie in the repository", out->text);
    if (!source_name_safe(revision))
        return err_set(e, EINVAL, "%s: the revision is not a branch, tag or commit", out->text);
    int r =
        copy(out->repo, sizeof out->repo, (struct str){begin, org.n + 1 + repo.n}, "repository", e);
    r = r ? r : copy(out->path, sizeof out->path, rest, "path", e);
    return r ? r : copy(out->revision, sizeof out->revision, revision, "revision", e);
}

static int parse_pvc(struct str s, struct source *out, struct err *e)
{
    struct str claim, rest = str_cut(s, '/', &claim);
    if (!claim.n || claim.n > 253 || (rest.n && !source_name_safe(rest)))
        return err_set(e, EINVAL, "%s is not pvc://claim/path", out->text);
    int r = copy(out->repo, sizeof out->repo, claim, "claim", e);
    return r ? r : copy(out->path, sizeof out->path, rest, "path", e);
}

static int parse_image(struct str s, struct source *out, struct err *e)
{
    struct str ref, query = str_cut(s, '?', &ref), path = {"", 0};
    if (query.n && str_starts(query, STR("path=")))
        path = (struct str){query.p + 5, query.n - 5};
    else if (query.n)
        return err_set(e, EINVAL, "%s is not image://reference[?path=/path]", out->text);
    if (path.n && path.p[0] == '/')
        path = (struct str){path.p + 1, path.n - 1};
    if (!ref.n || !url_safe(ref) || (path.n && !source_name_safe(path)))
        return err_set(e, EINVAL, "%s is not image://reference[?path=/path]", out->text);
    int r = copy(out->repo, sizeof out->repo, ref, "image reference", e);
    return r ? r : copy(out->path, sizeof out->path, path, "path", e);
}

static int parse_file(struct str s, struct source *out, struct err *e)
{
    if (!s.n || s.p[0] != '/')
        return err_set(e, EINVAL, "%s: a file source is file:///path", out->text);
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20)
            return err_set(e, EINVAL, "the file source holds control characters");
    return copy(out->path, sizeof out->path, s, "path", e);
}

int source_parse(const char *text, struct source *out, struct err *e)
{
    static const struct {
        struct str scheme;
        enum source_kind kind;
    } kinds[] = {{{"file://", 7}, SOURCE_FILE},
                 {{"hf://", 5}, SOURCE_HF},
                 {{"https://", 8}, SOURCE_HTTPS},
                 {{"pvc://", 6}, SOURCE_PVC},
                 {{"image://", 8}, SOURCE_IMAGE}};
    struct source s = {0};
    int r = copy(s.text, sizeof s.text, str_c(text), "text", e);
    if (r)
        return r;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!str_starts(str_c(text), kinds[i].scheme))
            continue;
        struct str rest = {text + kinds[i].scheme.n, strlen(text) - kinds[i].scheme.n};
        s.kind = kinds[i].kind;
        switch (s.kind) {
        case SOURCE_FILE: r = parse_file(rest, &s, e); break;
        case SOURCE_HF: r = parse_hf(rest, &s, e); break;
        case SOURCE_PVC: r = parse_pvc(rest, &s, e); break;
        case SOURCE_IMAGE: r = parse_image(rest, &s, e); break;
        case SOURCE_HTTPS:
            for (size_t k = 0; k < rest.n; k++)
                if ((unsigned char)rest.p[k] <= 0x20 || rest.p[k] == 0x7f)
                    return err_set(e, EINVAL, "%s holds white space", text);
            if (!rest.n || rest.p[0] == '/')
                r = err_set(e, EINVAL, "%s names no host", text);
            break;
        }
        if (!r)
            *out = s;
        return r;
    }
    return err_set(e, EINVAL,
                   "the model source %.100s is none of hf://, https://, file://, pvc://, image://",
                   text);
}

bool source_fetched(const struct source *s)
{
    return s->kind == SOURCE_HF || s->kind == SOURCE_HTTPS;
}

void source_key(const char *source, const char *endpoint, const char *sha256,
                char out[SOURCE_KEY_MAX])
{
    char hex[SHA_HEX];
    struct sha *h = sha_new();
    if (sha256 && *sha256) {
        sha_add(h, "sha256:", 7);
        sha_add(h, sha256, strlen(sha256));
    } else {
        sha_add(h, source, strlen(source));
        sha_add(h, "\n", 1);
        sha_add(h, endpoint ? endpoint : "", endpoint ? strlen(endpoint) : 0);
    }
    sha_end(h, hex);
    memcpy(out, hex, SOURCE_KEY_MAX - 1);
    out[SOURCE_KEY_MAX - 1] = 0;
}
