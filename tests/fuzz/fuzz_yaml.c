/* libFuzzer: YAML (the first byte chooses) or JSON into the views of InferenceDeployment and Pod,
 * and back. */
#include "lib/kube/types.h"
#include "lib/kube/yaml.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void round_trip(const struct view *v, const json_t *o)
{
    void *a = view_decode(v, o, NULL);
    if (!a)
        return;
    json_t *text = view_encode(v, a);
    void *b = view_decode(v, text, NULL);
    ASSERT(b && view_equal(v, a, b));
    free(a);
    free(b);
    json_decref(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    struct str text = {(const char *)data + 1, n - 1};
    json_t *o =
        data[0] & 1 ? json_parse(text, 1u << 20, 0, NULL) : yaml_parse(text, 1u << 20, NULL);
    if (o) {
        round_trip(&kube_infd_view, o);
        round_trip(&kube_pod_view, o);
        round_trip(&kube_wp_view, o);
        round_trip(&kube_secret_view, o);
    }
    json_decref(o);
    return 0;
}
