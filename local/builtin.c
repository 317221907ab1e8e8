/* The table of built-in kinds. */
#include "local/kinds.h"

#define APIEXT "apiextensions.k8s.io"
#define RBAC   "rbac.authorization.k8s.io"
#define ADM    "admissionregistration.k8s.io"
#define AUTHZ  "authorization.k8s.io"
#define AUTHN  "authentication.k8s.io"

enum {
    NS = R_NAMESPACED,
    WORKLOAD = R_NAMESPACED | R_STATUS | R_SCALE | R_GENERATION,
};

#define K(g, v, p, s, k, sh, cat, fl, op, st)                                                      \
    {                                                                                              \
        .group = (g), .version = (v), .plural = (p), .singular = (s), .kind = (k),                 \
        .short_names = (sh), .categories = (cat), .flags = (fl), .ops = (op), .storage = (st)      \
    }

/* group, version, plural, singular, kind, short names, categories, flags, rules, bucket when not
 * group/plural */
const struct resource builtin_resources[] = {
    K("", "v1", "bindings", "binding", "Binding", "", "", NS | R_VIRTUAL, NULL, NULL),
    K("", "v1", "configmaps", "configmap", "ConfigMap", "cm", "", NS, &ops_configmap, NULL),
    K("", "v1", "endpoints", "endpoints", "Endpoints", "ep", "", NS, NULL, NULL),
    K("", "v1", "events", "event", "Event", "ev", "", NS, &ops_event, NULL),
    K("", "v1", "limitranges", "limitrange", "LimitRange", "limits", "", NS, NULL, NULL),
    K("", "v1", "namespaces", "namespace", "Namespace", "ns", "", R_STATUS | R_RETURNS_OBJ,
      &ops_namespace, NULL),
    K("", "v1", "nodes", "node", "Node", "no", "", R_STATUS, &ops_node, NULL),
    K("", "v1", "pods", "pod", "Pod", "po", "all",
      NS | R_STATUS | R_RETURNS_OBJ | R_GRACEFUL | R_GENERATION, &ops_pod, NULL),
    K("", "v1", "resourcequotas", "resourcequota", "ResourceQuota", "quota", "", NS | R_STATUS,
      NULL, NULL),
    K("", "v1", "secrets", "secret", "Secret", "", "", NS, &ops_secret, NULL),
    K("", "v1", "serviceaccounts", "serviceaccount", "ServiceAccount", "sa", "", NS | R_RETURNS_OBJ,
      NULL, NULL),
    K("", "v1", "services", "service", "Service", "svc", "all", NS | R_STATUS | R_RETURNS_OBJ,
      &ops_service, NULL),
    K("", "v1", "persistentvolumeclaims", "persistentvolumeclaim", "PersistentVolumeClaim", "pvc",
      "", NS | R_STATUS | R_RETURNS_OBJ, NULL, NULL),
    K("", "v1", "persistentvolumes", "persistentvolume", "PersistentVolume", "pv", "",
      R_STATUS | R_RETURNS_OBJ, NULL, NULL),
    K("apps", "v1", "controllerrevisions", "controllerrevision", "ControllerRevision", "", "", NS,
      &ops_revision, NULL),
    K("apps", "v1", "daemonsets", "daemonset", "DaemonSet", "ds", "all",
      NS | R_STATUS | R_GENERATION, &ops_daemonset, NULL),
    K("apps", "v1", "deployments", "deployment", "Deployment", "deploy", "all", WORKLOAD,
      &ops_deployment, NULL),
    K("apps", "v1", "replicasets", "replicaset", "ReplicaSet", "rs", "all", WORKLOAD,
      &ops_replicaset, NULL),
    K("autoscaling", "v2", "horizontalpodautoscalers", "horizontalpodautoscaler",
      "HorizontalPodAutoscaler", "hpa", "all", NS | R_STATUS | R_GENERATION, &ops_hpa, NULL),
    K("policy", "v1", "poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget", "pdb",
      "", NS | R_STATUS | R_GENERATION, &ops_pdb, NULL),
    K("coordination.k8s.io", "v1", "leases", "lease", "Lease", "", "", NS, &ops_lease, NULL),
    K("events.k8s.io", "v1", "events", "event", "Event", "ev", "", NS, &ops_event_v1, "events"),
    K("discovery.k8s.io", "v1", "endpointslices", "endpointslice", "EndpointSlice", "", "",
      NS | R_GENERATION, NULL, NULL),
    K("networking.k8s.io", "v1", "networkpolicies", "networkpolicy", "NetworkPolicy", "netpol", "",
      NS | R_GENERATION, &ops_networkpolicy, NULL),
    K("scheduling.k8s.io", "v1", "priorityclasses", "priorityclass", "PriorityClass", "pc", "", 0,
      NULL, NULL),
    K(RBAC, "v1", "clusterroles", "clusterrole", "ClusterRole", "", "", 0, &ops_role, NULL),
    K(RBAC, "v1", "clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding", "", "", 0,
      &ops_rbac, NULL),
    K(RBAC, "v1", "roles", "role", "Role", "", "", NS, &ops_role, NULL),
    K(RBAC, "v1", "rolebindings", "rolebinding", "RoleBinding", "", "", NS, &ops_rbac, NULL),
    K(ADM, "v1", "mutatingwebhookconfigurations", "mutatingwebhookconfiguration",
      "MutatingWebhookConfiguration", "", "api-extensions", R_GENERATION, NULL, NULL),
    K(ADM, "v1", "validatingwebhookconfigurations", "validatingwebhookconfiguration",
      "ValidatingWebhookConfiguration", "", "api-extensions", R_GENERATION, NULL, NULL),
    K(ADM, "v1", "validatingadmissionpolicies", "validatingadmissionpolicy",
      "ValidatingAdmissionPolicy", "", "api-extensions", R_STATUS | R_GENERATION, NULL, NULL),
    K(ADM, "v1", "validatingadmissionpolicybindings", "validatingadmissionpolicybinding",
      "ValidatingAdmissionPolicyBinding", "", "api-extensions", R_GENERATION, NULL, NULL),
    K(APIEXT, "v1", "customresourcedefinitions", "customresourcedefinition",
      "CustomResourceDefinition", "crd,crds", "api-extensions", R_STATUS | R_GENERATION, &ops_crd,
      NULL),
    K(AUTHN, "v1", "tokenreviews", "tokenreview", "TokenReview", "", "", R_VIRTUAL, NULL, NULL),
    K(AUTHN, "v1", "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview", "", "",
      R_VIRTUAL, NULL, NULL),
    K(AUTHZ, "v1", "selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview",
      "", "", R_VIRTUAL, NULL, NULL),
    K(AUTHZ, "v1", "selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview",
      "", "", R_VIRTUAL, NULL, NULL),
    K(AUTHZ, "v1", "subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview", "", "",
      R_VIRTUAL, NULL, NULL),
    K(AUTHZ, "v1", "localsubjectaccessreviews", "localsubjectaccessreview",
      "LocalSubjectAccessReview", "", "", NS | R_VIRTUAL, NULL, NULL),
    K(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
};
