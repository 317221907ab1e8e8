/* The other groups: the table of built-in types (syntax in types.h). */
#include "local/types.h"

const char *const types_table_more[] = {
    "@io.k8s.api.apps.v1 apps/v1",
    "*Deployment spec:DeploymentSpec status:DeploymentStatus",
    "DeploymentSpec replicas:j=1 selector:LabelSelector! template:PodTemplateSpec! "
    "strategy:DeploymentStrategy={} minReadySeconds:j revisionHistoryLimit:j=10 paused:b "
    "progressDeadlineSeconds:j=600",
    "DeploymentStrategy type:s=\"RollingUpdate\" rollingUpdate:RollingUpdateDeployment",
    "RollingUpdateDeployment maxUnavailable:x=\"25%\" maxSurge:x=\"25%\"",
    "DeploymentStatus observedGeneration:i replicas:j updatedReplicas:j readyReplicas:j "
    "availableReplicas:j unavailableReplicas:j terminatingReplicas:j "
    "conditions:[DeploymentCondition|type] collisionCount:j",
    "DeploymentCondition type:s! status:s! lastUpdateTime:t lastTransitionTime:t reason:s "
    "message:s",
    "*ReplicaSet spec:ReplicaSetSpec status:ReplicaSetStatus",
    "ReplicaSetSpec replicas:j=1 minReadySeconds:j selector:LabelSelector! "
    "template:PodTemplateSpec",
    "ReplicaSetStatus replicas:j=0! fullyLabeledReplicas:j readyReplicas:j availableReplicas:j "
    "terminatingReplicas:j observedGeneration:i conditions:[ReplicaSetCondition|type]",
    "ReplicaSetCondition type:s! status:s! lastTransitionTime:t reason:s message:s",
    "*ControllerRevision data:o revision:i!",
    "*DaemonSet spec:DaemonSetSpec status:DaemonSetStatus",
    "DaemonSetSpec selector:LabelSelector! template:PodTemplateSpec! "
    "updateStrategy:DaemonSetUpdateStrategy={} minReadySeconds:j revisionHistoryLimit:j=10",
    "DaemonSetUpdateStrategy type:s=\"RollingUpdate\" rollingUpdate:RollingUpdateDaemonSet",
    "RollingUpdateDaemonSet maxUnavailable:x=1 maxSurge:x=0",
    "DaemonSetStatus currentNumberScheduled:j=0! numberMisscheduled:j=0! "
    "desiredNumberScheduled:j=0! "
    "numberReady:j=0! observedGeneration:i updatedNumberScheduled:j numberAvailable:j "
    "numberUnavailable:j collisionCount:j conditions:[DaemonSetCondition|type]",
    "DaemonSetCondition type:s! status:s! lastTransitionTime:t reason:s message:s",

    "@io.k8s.api.autoscaling.v1 autoscaling/v1",
    "*Scale spec:ScaleSpec status:ScaleStatus",
    "ScaleSpec replicas:j",
    "ScaleStatus replicas:j! selector:s",

    "@io.k8s.api.policy.v1 policy/v1",
    "*PodDisruptionBudget spec:PodDisruptionBudgetSpec status:PodDisruptionBudgetStatus",
    "PodDisruptionBudgetSpec minAvailable:x selector:LabelSelector maxUnavailable:x "
    "unhealthyPodEvictionPolicy:s",
    "PodDisruptionBudgetStatus observedGeneration:i disruptedPods:{t} disruptionsAllowed:j! "
    "currentHealthy:j! desiredHealthy:j! expectedPods:j! conditions:[Condition|type]",
    "*Eviction deleteOptions:DeleteOptions",

    "@io.k8s.api.coordination.v1 coordination.k8s.io/v1",
    "*Lease spec:LeaseSpec",
    "LeaseSpec holderIdentity:s leaseDurationSeconds:j acquireTime:t renewTime:t "
    "leaseTransitions:j "
    "strategy:s preferredHolder:s",

    "@io.k8s.api.events.v1 events.k8s.io/v1",
    "*Event eventTime:t! series:EventSeries reportingController:s reportingInstance:s action:s "
    "reason:s regarding:ObjectReference related:ObjectReference note:s type:s "
    "deprecatedSource:EventSource deprecatedFirstTimestamp:t deprecatedLastTimestamp:t "
    "deprecatedCount:j",
    "EventSeries count:j! lastObservedTime:t!",

    "@io.k8s.api.discovery.v1 discovery.k8s.io/v1",
    "*EndpointSlice addressType:s! endpoints:[Endpoint]! ports:[EndpointPort]",
    "Endpoint addresses:[s=]! conditions:EndpointConditions hostname:s targetRef:ObjectReference "
    "deprecatedTopology:{s} nodeName:s zone:s hints:o",
    "EndpointConditions ready:b serving:b terminating:b",
    "~EndpointPort name:s=\"\" protocol:s=\"TCP\" port:j appProtocol:s",

    "@io.k8s.api.rbac.v1 rbac.authorization.k8s.io/v1",
    "*Role rules:[PolicyRule]",
    "*ClusterRole rules:[PolicyRule] aggregationRule:AggregationRule",
    "AggregationRule clusterRoleSelectors:[LabelSelector]",
    "PolicyRule verbs:[s]! apiGroups:[s] resources:[s] resourceNames:[s] nonResourceURLs:[s]",
    "*RoleBinding subjects:[Subject] roleRef:RoleRef!",
    "*ClusterRoleBinding subjects:[Subject] roleRef:RoleRef!",
    "~Subject kind:s! apiGroup:s name:s! namespace:s",
    "~RoleRef apiGroup:s! kind:s! name:s!",

    "@io.k8s.api.networking.v1 networking.k8s.io/v1",
    "*NetworkPolicy spec:NetworkPolicySpec",
    "NetworkPolicySpec podSelector:LabelSelector={} ingress:[NetworkPolicyIngressRule] "
    "egress:[NetworkPolicyEgressRule] policyTypes:[s]",
    "NetworkPolicyIngressRule ports:[NetworkPolicyPort] from:[NetworkPolicyPeer]",
    "NetworkPolicyEgressRule ports:[NetworkPolicyPort] to:[NetworkPolicyPeer]",
    "NetworkPolicyPort protocol:s=\"TCP\" port:x endPort:j",
    "NetworkPolicyPeer podSelector:LabelSelector namespaceSelector:LabelSelector ipBlock:IPBlock",
    "IPBlock cidr:s! except:[s]",

    "@io.k8s.api.autoscaling.v2 autoscaling/v2",
    "*HorizontalPodAutoscaler spec:HorizontalPodAutoscalerSpec "
    "status:HorizontalPodAutoscalerStatus",
    "HorizontalPodAutoscalerSpec scaleTargetRef:CrossVersionObjectReference! minReplicas:j=1 "
    "maxReplicas:j! metrics:[MetricSpec] behavior:o",
    "CrossVersionObjectReference kind:s! name:s! apiVersion:s",
    "MetricSpec type:s! object:o pods:o resource:ResourceMetricSource containerResource:o "
    "external:o",
    "ResourceMetricSource name:s! target:MetricTarget!",
    "MetricTarget type:s! value:q averageValue:q averageUtilization:j",
    "HorizontalPodAutoscalerStatus observedGeneration:i lastScaleTime:t currentReplicas:j "
    "desiredReplicas:j! currentMetrics:[v] "
    "conditions:[HorizontalPodAutoscalerCondition|type]",
    "HorizontalPodAutoscalerCondition type:s! status:s! lastTransitionTime:t reason:s message:s",

    "@io.k8s.api.scheduling.v1 scheduling.k8s.io/v1",
    "*PriorityClass value:j! globalDefault:b description:s preemptionPolicy:s="
    "\"PreemptLowerPriority\"",

    "@io.k8s.api.authentication.v1 authentication.k8s.io/v1",
    "*TokenReview spec:TokenReviewSpec! status:TokenReviewStatus",
    "TokenReviewSpec token:s audiences:[s]",
    "TokenReviewStatus authenticated:b user:UserInfo audiences:[s] error:s",
    "UserInfo username:s uid:s groups:[s] extra:{[s]}",
    "*SelfSubjectReview status:SelfSubjectReviewStatus",
    "SelfSubjectReviewStatus userInfo:UserInfo",
    "*TokenRequest spec:TokenRequestSpec! status:TokenRequestStatus",
    "TokenRequestSpec audiences:[s] expirationSeconds:i=3600 boundObjectRef:o",
    "TokenRequestStatus token:s! expirationTimestamp:t!",

    "@io.k8s.api.authorization.v1 authorization.k8s.io/v1",
    "*SelfSubjectAccessReview spec:SelfSubjectAccessReviewSpec! status:SubjectAccessReviewStatus",
    "SelfSubjectAccessReviewSpec resourceAttributes:ResourceAttributes "
    "nonResourceAttributes:NonResourceAttributes",
    "*SubjectAccessReview spec:SubjectAccessReviewSpec! status:SubjectAccessReviewStatus",
    "*LocalSubjectAccessReview spec:SubjectAccessReviewSpec! status:SubjectAccessReviewStatus",
    "SubjectAccessReviewSpec resourceAttributes:ResourceAttributes "
    "nonResourceAttributes:NonResourceAttributes user:s groups:[s] extra:{[s]} uid:s",
    "ResourceAttributes namespace:s verb:s group:s version:s resource:s subresource:s name:s "
    "fieldSelector:o labelSelector:o",
    "NonResourceAttributes path:s verb:s",
    "SubjectAccessReviewStatus allowed:b! denied:b reason:s evaluationError:s",
    "*SelfSubjectRulesReview spec:SelfSubjectRulesReviewSpec! status:SubjectRulesReviewStatus",
    "SelfSubjectRulesReviewSpec namespace:s",
    "SubjectRulesReviewStatus resourceRules:[ResourceRule]! nonResourceRules:[NonResourceRule]! "
    "incomplete:b! evaluationError:s",
    "ResourceRule verbs:[s]! apiGroups:[s] resources:[s] resourceNames:[s]",
    "NonResourceRule verbs:[s]! nonResourceURLs:[s]",

    "@io.k8s.api.admissionregistration.v1 admissionregistration.k8s.io/v1",
    "*ValidatingWebhookConfiguration webhooks:[Webhook|name]",
    "*MutatingWebhookConfiguration webhooks:[Webhook|name]",
    "Webhook name:s! clientConfig:o! rules:[v] failurePolicy:s=\"Fail\" "
    "matchPolicy:s=\"Equivalent\" "
    "namespaceSelector:LabelSelector={} objectSelector:LabelSelector={} sideEffects:s! "
    "timeoutSeconds:j=10 admissionReviewVersions:[s]! matchConditions:[MatchCondition|name] "
    "reinvocationPolicy:s",
    "MatchCondition name:s! expression:s!",
    "*ValidatingAdmissionPolicy spec:ValidatingAdmissionPolicySpec "
    "status:ValidatingAdmissionPolicyStatus",
    "ValidatingAdmissionPolicySpec paramKind:o matchConstraints:o validations:[v] "
    "failurePolicy:s=\"Fail\" auditAnnotations:[v] matchConditions:[MatchCondition|name] "
    "variables:[v]",
    "ValidatingAdmissionPolicyStatus observedGeneration:i typeChecking:o "
    "conditions:[Condition|type]",
    "*ValidatingAdmissionPolicyBinding spec:ValidatingAdmissionPolicyBindingSpec",
    "ValidatingAdmissionPolicyBindingSpec policyName:s paramRef:o matchResources:o "
    "validationActions:[s=]",

    "@io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1 apiextensions.k8s.io/v1",
    "*CustomResourceDefinition spec:CustomResourceDefinitionSpec! "
    "status:CustomResourceDefinitionStatus",
    "CustomResourceDefinitionSpec group:s! names:CustomResourceDefinitionNames! scope:s! "
    "versions:[CustomResourceDefinitionVersion]! conversion:CustomResourceConversion "
    "preserveUnknownFields:b",
    "CustomResourceDefinitionNames plural:s! singular:s shortNames:[s] kind:s! listKind:s "
    "categories:[s]",
    "CustomResourceDefinitionVersion name:s! served:b! storage:b! deprecated:b "
    "deprecationWarning:s "
    "schema:CustomResourceValidation subresources:CustomResourceSubresources "
    "additionalPrinterColumns:[CustomResourceColumnDefinition] selectableFields:[SelectableField]",
    "CustomResourceValidation openAPIV3Schema:o",
    "CustomResourceSubresources status:o scale:CustomResourceSubresourceScale",
    "CustomResourceSubresourceScale specReplicasPath:s! statusReplicasPath:s! labelSelectorPath:s",
    "CustomResourceColumnDefinition name:s! type:s! format:s description:s priority:j jsonPath:s!",
    "SelectableField jsonPath:s!",
    "CustomResourceConversion strategy:s! webhook:o",
    "CustomResourceDefinitionStatus conditions:[CustomResourceDefinitionCondition|type] "
    "acceptedNames:CustomResourceDefinitionNames storedVersions:[s] observedGeneration:i",
    "CustomResourceDefinitionCondition type:s! status:s! lastTransitionTime:t reason:s message:s "
    "observedGeneration:i",
    NULL,
};
