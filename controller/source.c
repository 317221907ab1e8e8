/* Sources that are mounted into the pod: a PersistentVolumeClaim, or an image as a volume. The
 * launcher finds the model at BATON_MODEL_PATH. */
#include "controller/source.h"

#include "lib/fetch/source.h"

#define SOURCE_DIR "/var/lib/baton/source"

static json_t *volume_of(const struct source *s)
{
    if (s->kind == SOURCE_PVC)
        return json_pack("{s:s, s:{s:s, s:b}}", "name", "source", "persistentVolumeClaim",
                         "claimName", s->repo, "readOnly", 1);
    return json_pack("{s:s, s:{s:s, s:s}}", "name", "source", "image", "reference", s->repo,
                     "pullPolicy", "IfNotPresent");
}

void source_mount(const struct kube_infd *d, json_t *spec)
{
    struct source s;
    if (!d->model_source || source_parse(d->model_source, &s, NULL) ||
        (s.kind != SOURCE_PVC && s.kind != SOURCE_IMAGE))
        return;
    json_t *container = json_array_get(json_object_get(spec, "containers"), 0);
    CLEANUP(free_charp)
    char *path = *s.path ? xasprintf(SOURCE_DIR "/%s", s.path) : xstrdup(SOURCE_DIR);
    json_array_append_new(json_object_get(spec, "volumes"), volume_of(&s));
    json_array_append_new(
        json_object_get(container, "volumeMounts"),
        json_pack("{s:s, s:s, s:b}", "name", "source", "mountPath", SOURCE_DIR, "readOnly", 1));
    json_array_append_new(json_object_get(container, "env"),
                          json_pack("{s:s, s:s}", "name", "BATON_MODEL_PATH", "value", path));
}

const char *source_invalid(const struct kube_infd *d)
{
    static char why[512];
    struct source s;
    struct err e;
    if (!source_parse(d->model_source, &s, &e))
        return NULL;
    memcpy(why, e.msg, sizeof why);
    return why;
}
