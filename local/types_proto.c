/* Protobuf field numbers of the built-in types; written by tools/k8s_proto_fields.py from
 * k8s.io/api v0.37.2. One string a type: its name, then number and field in turn. */
#include "local/proto.h"

const char *const proto_table[] = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta 1 name 2 generateName 3 namespace 4 "
    "selfLink 5 uid 6 resourceVersion 7 generation 8 creationTimestamp 9 deletionTimestamp 10 "
    "deletionGracePeriodSeconds 11 labels 12 annotations 13 ownerReferences 14 finalizers 17 "
    "managedFields",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference 5 apiVersion 1 kind 3 name 4 uid 6 "
    "controller 7 blockOwnerDeletion",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry 1 manager 2 operation 3 "
    "apiVersion 4 time 6 fieldsType 7 fieldsV1 8 subresource",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta 1 selfLink 2 resourceVersion 3 continue 4 "
    "remainingItemCount",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector 1 matchLabels 2 matchExpressions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement 1 key 2 operator 3 values",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions 1 gracePeriodSeconds 2 preconditions "
    "3 orphanDependents 4 propagationPolicy 5 dryRun 6 "
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions 1 uid 2 resourceVersion",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Condition 1 type 2 status 3 observedGeneration 4 "
    "lastTransitionTime 5 reason 6 message",
    "io.k8s.api.core.v1.Pod 1 metadata 2 spec 3 status",
    "io.k8s.api.core.v1.PodSpec 1 volumes 20 initContainers 2 containers 34 "
    "ephemeralContainers 3 restartPolicy 4 terminationGracePeriodSeconds 5 "
    "activeDeadlineSeconds 6 dnsPolicy 7 nodeSelector 8 serviceAccountName 9 serviceAccount "
    "21 automountServiceAccountToken 10 nodeName 11 hostNetwork 12 hostPID 13 hostIPC 27 "
    "shareProcessNamespace 14 securityContext 15 imagePullSecrets 16 hostname 17 subdomain 18 "
    "affinity 19 schedulerName 22 tolerations 23 hostAliases 24 priorityClassName 25 priority "
    "26 dnsConfig 28 readinessGates 29 runtimeClassName 30 enableServiceLinks 31 "
    "preemptionPolicy 32 overhead 33 topologySpreadConstraints 35 setHostnameAsFQDN 36 os 37 "
    "hostUsers 38 schedulingGates 39 resourceClaims 40 resources 41 hostnameOverride",
    "io.k8s.api.core.v1.Container 1 name 2 image 3 command 4 args 5 workingDir 6 ports 19 "
    "envFrom 7 env 8 resources 23 resizePolicy 24 restartPolicy 25 restartPolicyRules 9 "
    "volumeMounts 21 volumeDevices 10 livenessProbe 11 readinessProbe 22 startupProbe 12 "
    "lifecycle 13 terminationMessagePath 20 terminationMessagePolicy 14 imagePullPolicy 15 "
    "securityContext 16 stdin 17 stdinOnce 18 tty",
    "io.k8s.api.core.v1.EphemeralContainer 2 targetContainerName",
    "io.k8s.api.core.v1.ContainerPort 1 name 2 hostPort 3 containerPort 4 protocol 5 hostIP",
    "io.k8s.api.core.v1.ContainerResizePolicy 1 resourceName 2 restartPolicy",
    "io.k8s.api.core.v1.EnvVar 1 name 2 value 3 valueFrom",
    "io.k8s.api.core.v1.EnvVarSource 1 fieldRef 2 resourceFieldRef 3 configMapKeyRef 4 "
    "secretKeyRef 5 fileKeyRef",
    "io.k8s.api.core.v1.ObjectFieldSelector 1 apiVersion 2 fieldPath",
    "io.k8s.api.core.v1.ResourceFieldSelector 1 containerName 2 resource 3 divisor",
    "io.k8s.api.core.v1.ConfigMapKeySelector 2 key 3 optional",
    "io.k8s.api.core.v1.SecretKeySelector 2 key 3 optional",
    "io.k8s.api.core.v1.EnvFromSource 1 prefix 2 configMapRef 3 secretRef",
    "io.k8s.api.core.v1.ConfigMapEnvSource 2 optional",
    "io.k8s.api.core.v1.SecretEnvSource 2 optional",
    "io.k8s.api.core.v1.ResourceRequirements 1 limits 2 requests 3 claims",
    "io.k8s.api.core.v1.ResourceClaim 1 name 2 request",
    "io.k8s.api.core.v1.VolumeMount 1 name 2 readOnly 7 recursiveReadOnly 3 mountPath 4 "
    "subPath 5 mountPropagation 6 subPathExpr",
    "io.k8s.api.core.v1.VolumeDevice 1 name 2 devicePath",
    "io.k8s.api.core.v1.Probe 2 initialDelaySeconds 3 timeoutSeconds 4 periodSeconds 5 "
    "successThreshold 6 failureThreshold 7 terminationGracePeriodSeconds",
    "io.k8s.api.core.v1.ExecAction 1 command",
    "io.k8s.api.core.v1.HTTPGetAction 1 path 2 port 3 host 4 scheme 5 httpHeaders",
    "io.k8s.api.core.v1.HTTPHeader 1 name 2 value",
    "io.k8s.api.core.v1.TCPSocketAction 1 port 2 host",
    "io.k8s.api.core.v1.GRPCAction 1 port 2 service",
    "io.k8s.api.core.v1.Lifecycle 1 postStart 2 preStop 3 stopSignal",
    "io.k8s.api.core.v1.LifecycleHandler 1 exec 2 httpGet 3 tcpSocket 4 sleep",
    "io.k8s.api.core.v1.SleepAction 1 seconds",
    "io.k8s.api.core.v1.SecurityContext 1 capabilities 2 privileged 3 seLinuxOptions 10 "
    "windowsOptions 4 runAsUser 8 runAsGroup 5 runAsNonRoot 6 readOnlyRootFilesystem 7 "
    "allowPrivilegeEscalation 9 procMount 11 seccompProfile 12 appArmorProfile",
    "io.k8s.api.core.v1.Capabilities 1 add 2 drop",
    "io.k8s.api.core.v1.SeccompProfile 1 type 2 localhostProfile",
    "io.k8s.api.core.v1.AppArmorProfile 1 type 2 localhostProfile",
    "io.k8s.api.core.v1.PodSecurityContext 1 seLinuxOptions 8 windowsOptions 2 runAsUser 6 "
    "runAsGroup 3 runAsNonRoot 4 supplementalGroups 12 supplementalGroupsPolicy 5 fsGroup 7 "
    "sysctls 9 fsGroupChangePolicy 10 seccompProfile 11 appArmorProfile 13 "
    "seLinuxChangePolicy",
    "io.k8s.api.core.v1.Sysctl 1 name 2 value",
    "io.k8s.api.core.v1.LocalObjectReference 1 name",
    "io.k8s.api.core.v1.Affinity 1 nodeAffinity 2 podAffinity 3 podAntiAffinity",
    "io.k8s.api.core.v1.NodeAffinity 1 requiredDuringSchedulingIgnoredDuringExecution 2 "
    "preferredDuringSchedulingIgnoredDuringExecution",
    "io.k8s.api.core.v1.NodeSelector 1 nodeSelectorTerms",
    "io.k8s.api.core.v1.NodeSelectorTerm 1 matchExpressions 2 matchFields",
    "io.k8s.api.core.v1.NodeSelectorRequirement 1 key 2 operator 3 values",
    "io.k8s.api.core.v1.PreferredSchedulingTerm 1 weight 2 preference",
    "io.k8s.api.core.v1.PodAffinity 1 requiredDuringSchedulingIgnoredDuringExecution 2 "
    "preferredDuringSchedulingIgnoredDuringExecution",
    "io.k8s.api.core.v1.PodAntiAffinity 1 requiredDuringSchedulingIgnoredDuringExecution 2 "
    "preferredDuringSchedulingIgnoredDuringExecution",
    "io.k8s.api.core.v1.PodAffinityTerm 1 labelSelector 2 namespaces 3 topologyKey 4 "
    "namespaceSelector 5 matchLabelKeys 6 mismatchLabelKeys",
    "io.k8s.api.core.v1.WeightedPodAffinityTerm 1 weight 2 podAffinityTerm",
    "io.k8s.api.core.v1.Toleration 1 key 2 operator 3 value 4 effect 5 tolerationSeconds",
    "io.k8s.api.core.v1.HostAlias 1 ip 2 hostnames",
    "io.k8s.api.core.v1.PodDNSConfig 1 nameservers 2 searches 3 options",
    "io.k8s.api.core.v1.PodDNSConfigOption 1 name 2 value",
    "io.k8s.api.core.v1.PodReadinessGate 1 conditionType",
    "io.k8s.api.core.v1.TopologySpreadConstraint 1 maxSkew 2 topologyKey 3 whenUnsatisfiable "
    "4 labelSelector 5 minDomains 6 nodeAffinityPolicy 7 nodeTaintsPolicy 8 matchLabelKeys",
    "io.k8s.api.core.v1.PodOS 1 name",
    "io.k8s.api.core.v1.PodSchedulingGate 1 name",
    "io.k8s.api.core.v1.PodResourceClaim 1 name 3 resourceClaimName 4 "
    "resourceClaimTemplateName",
    "io.k8s.api.core.v1.Volume 1 name",
    "io.k8s.api.core.v1.HostPathVolumeSource 1 path 2 type",
    "io.k8s.api.core.v1.EmptyDirVolumeSource 1 medium 2 sizeLimit",
    "io.k8s.api.core.v1.SecretVolumeSource 1 secretName 2 items 3 defaultMode 4 optional",
    "io.k8s.api.core.v1.ConfigMapVolumeSource 2 items 3 defaultMode 4 optional",
    "io.k8s.api.core.v1.KeyToPath 1 key 2 path 3 mode",
    "io.k8s.api.core.v1.DownwardAPIVolumeSource 1 items 2 defaultMode",
    "io.k8s.api.core.v1.DownwardAPIVolumeFile 1 path 2 fieldRef 3 resourceFieldRef 4 mode",
    "io.k8s.api.core.v1.ProjectedVolumeSource 1 sources 2 defaultMode",
    "io.k8s.api.core.v1.VolumeProjection 1 secret 2 downwardAPI 3 configMap 4 "
    "serviceAccountToken 5 clusterTrustBundle 6 podCertificate",
    "io.k8s.api.core.v1.SecretProjection 2 items 4 optional",
    "io.k8s.api.core.v1.ConfigMapProjection 2 items 4 optional",
    "io.k8s.api.core.v1.DownwardAPIProjection 1 items",
    "io.k8s.api.core.v1.ServiceAccountTokenProjection 1 audience 2 expirationSeconds 3 path",
    "io.k8s.api.core.v1.PersistentVolumeClaimVolumeSource 1 claimName 2 readOnly",
    "io.k8s.api.core.v1.ImageVolumeSource 1 reference 2 pullPolicy",
    "io.k8s.api.core.v1.NFSVolumeSource 1 server 2 path 3 readOnly",
    "io.k8s.api.core.v1.PodStatus 17 observedGeneration 1 phase 2 conditions 3 message 4 "
    "reason 11 nominatedNodeName 5 hostIP 16 hostIPs 6 podIP 12 podIPs 7 startTime 10 "
    "initContainerStatuses 8 containerStatuses 9 qosClass 13 ephemeralContainerStatuses 14 "
    "resize 15 resourceClaimStatuses 18 extendedResourceClaimStatus 19 allocatedResources 20 "
    "resources",
    "io.k8s.api.core.v1.PodCondition 1 type 7 observedGeneration 2 status 3 lastProbeTime 4 "
    "lastTransitionTime 5 reason 6 message",
    "io.k8s.api.core.v1.HostIP 1 ip",
    "io.k8s.api.core.v1.PodIP 1 ip",
    "io.k8s.api.core.v1.ContainerStatus 1 name 2 state 3 lastState 4 ready 5 restartCount 6 "
    "image 7 imageID 8 containerID 9 started 10 allocatedResources 11 resources 12 "
    "volumeMounts 13 user 14 allocatedResourcesStatus 15 stopSignal",
    "io.k8s.api.core.v1.VolumeMountStatus 1 name 2 mountPath 3 readOnly 4 recursiveReadOnly",
    "io.k8s.api.core.v1.ContainerState 1 waiting 2 running 3 terminated",
    "io.k8s.api.core.v1.ContainerStateWaiting 1 reason 2 message",
    "io.k8s.api.core.v1.ContainerStateRunning 1 startedAt",
    "io.k8s.api.core.v1.ContainerStateTerminated 1 exitCode 2 signal 3 reason 4 message 5 "
    "startedAt 6 finishedAt 7 containerID",
    "io.k8s.api.core.v1.PodTemplateSpec 1 metadata 2 spec",
    "io.k8s.api.core.v1.Namespace 1 metadata 2 spec 3 status",
    "io.k8s.api.core.v1.NamespaceSpec 1 finalizers",
    "io.k8s.api.core.v1.NamespaceStatus 1 phase 2 conditions",
    "io.k8s.api.core.v1.NamespaceCondition 1 type 2 status 4 lastTransitionTime 5 reason 6 "
    "message",
    "io.k8s.api.core.v1.ConfigMap 1 metadata 4 immutable 2 data 3 binaryData",
    "io.k8s.api.core.v1.Secret 1 metadata 5 immutable 2 data 4 stringData 3 type",
    "io.k8s.api.core.v1.ServiceAccount 1 metadata 2 secrets 3 imagePullSecrets 4 "
    "automountServiceAccountToken",
    "io.k8s.api.core.v1.ObjectReference 1 kind 2 namespace 3 name 4 uid 5 apiVersion 6 "
    "resourceVersion 7 fieldPath",
    "io.k8s.api.core.v1.Service 1 metadata 2 spec 3 status",
    "io.k8s.api.core.v1.ServiceSpec 1 ports 2 selector 3 clusterIP 18 clusterIPs 4 type 5 "
    "externalIPs 7 sessionAffinity 8 loadBalancerIP 9 loadBalancerSourceRanges 10 "
    "externalName 11 externalTrafficPolicy 12 healthCheckNodePort 13 publishNotReadyAddresses "
    "14 sessionAffinityConfig 19 ipFamilies 17 ipFamilyPolicy 20 "
    "allocateLoadBalancerNodePorts 21 loadBalancerClass 22 internalTrafficPolicy 23 "
    "trafficDistribution",
    "io.k8s.api.core.v1.ServicePort 1 name 2 protocol 6 appProtocol 3 port 4 targetPort 5 "
    "nodePort",
    "io.k8s.api.core.v1.ServiceStatus 1 loadBalancer 2 conditions",
    "io.k8s.api.core.v1.LoadBalancerStatus 1 ingress",
    "io.k8s.api.core.v1.LoadBalancerIngress 1 ip 2 hostname 3 ipMode 4 ports",
    "io.k8s.api.core.v1.Node 1 metadata 2 spec 3 status",
    "io.k8s.api.core.v1.NodeSpec 1 podCIDR 7 podCIDRs 3 providerID 4 unschedulable 5 taints 6 "
    "configSource 2 externalID",
    "io.k8s.api.core.v1.Taint 1 key 2 value 3 effect 4 timeAdded",
    "io.k8s.api.core.v1.NodeStatus 1 capacity 2 allocatable 3 phase 4 conditions 5 addresses "
    "6 daemonEndpoints 7 nodeInfo 8 images 9 volumesInUse 10 volumesAttached 11 config 12 "
    "runtimeHandlers 13 features 14 declaredFeatures",
    "io.k8s.api.core.v1.NodeCondition 1 type 2 status 3 lastHeartbeatTime 4 "
    "lastTransitionTime 5 reason 6 message",
    "io.k8s.api.core.v1.NodeAddress 1 type 2 address",
    "io.k8s.api.core.v1.NodeDaemonEndpoints 1 kubeletEndpoint",
    "io.k8s.api.core.v1.DaemonEndpoint 1 Port",
    "io.k8s.api.core.v1.NodeSystemInfo 1 machineID 2 systemUUID 3 bootID 4 kernelVersion 5 "
    "osImage 6 containerRuntimeVersion 7 kubeletVersion 8 kubeProxyVersion 9 operatingSystem "
    "10 architecture 11 swap",
    "io.k8s.api.core.v1.ContainerImage 1 names 2 sizeBytes",
    "io.k8s.api.core.v1.Event 1 metadata 2 involvedObject 3 reason 4 message 5 source 6 "
    "firstTimestamp 7 lastTimestamp 8 count 9 type 10 eventTime 11 series 12 action 13 "
    "related 14 reportingComponent 15 reportingInstance",
    "io.k8s.api.core.v1.EventSource 1 component 2 host",
    "io.k8s.api.core.v1.EventSeries 1 count 2 lastObservedTime",
    "io.k8s.api.core.v1.Endpoints 1 metadata 2 subsets",
    "io.k8s.api.core.v1.EndpointSubset 1 addresses 2 notReadyAddresses 3 ports",
    "io.k8s.api.core.v1.EndpointAddress 1 ip 3 hostname 4 nodeName 2 targetRef",
    "io.k8s.api.core.v1.EndpointPort 1 name 2 port 3 protocol 4 appProtocol",
    "io.k8s.api.core.v1.Binding 1 metadata 2 target",
    "io.k8s.api.core.v1.ResourceQuota 1 metadata 2 spec 3 status",
    "io.k8s.api.core.v1.ResourceQuotaSpec 1 hard 2 scopes 3 scopeSelector",
    "io.k8s.api.core.v1.ResourceQuotaStatus 1 hard 2 used",
    "io.k8s.api.core.v1.LimitRange 1 metadata 2 spec",
    "io.k8s.api.core.v1.PersistentVolumeClaim 1 metadata 2 spec 3 status",
    "io.k8s.api.core.v1.PersistentVolume 1 metadata 2 spec 3 status",
    "io.k8s.api.apps.v1.Deployment 1 metadata 2 spec 3 status",
    "io.k8s.api.apps.v1.DeploymentSpec 1 replicas 2 selector 3 template 4 strategy 5 "
    "minReadySeconds 6 revisionHistoryLimit 7 paused 9 progressDeadlineSeconds",
    "io.k8s.api.apps.v1.DeploymentStrategy 1 type 2 rollingUpdate",
    "io.k8s.api.apps.v1.RollingUpdateDeployment 1 maxUnavailable 2 maxSurge",
    "io.k8s.api.apps.v1.DeploymentStatus 1 observedGeneration 2 replicas 3 updatedReplicas 7 "
    "readyReplicas 4 availableReplicas 5 unavailableReplicas 9 terminatingReplicas 6 "
    "conditions 8 collisionCount",
    "io.k8s.api.apps.v1.DeploymentCondition 1 type 2 status 6 lastUpdateTime 7 "
    "lastTransitionTime 4 reason 5 message",
    "io.k8s.api.apps.v1.ReplicaSet 1 metadata 2 spec 3 status",
    "io.k8s.api.apps.v1.ReplicaSetSpec 1 replicas 4 minReadySeconds 2 selector 3 template",
    "io.k8s.api.apps.v1.ReplicaSetStatus 1 replicas 2 fullyLabeledReplicas 4 readyReplicas 5 "
    "availableReplicas 7 terminatingReplicas 3 observedGeneration 6 conditions",
    "io.k8s.api.apps.v1.ReplicaSetCondition 1 type 2 status 3 lastTransitionTime 4 reason 5 "
    "message",
    "io.k8s.api.apps.v1.DaemonSet 1 metadata 2 spec 3 status",
    "io.k8s.api.apps.v1.DaemonSetSpec 1 selector 2 template 3 updateStrategy 4 "
    "minReadySeconds 6 revisionHistoryLimit",
    "io.k8s.api.apps.v1.DaemonSetUpdateStrategy 1 type 2 rollingUpdate",
    "io.k8s.api.apps.v1.RollingUpdateDaemonSet 1 maxUnavailable 2 maxSurge",
    "io.k8s.api.apps.v1.DaemonSetStatus 1 currentNumberScheduled 2 numberMisscheduled 3 "
    "desiredNumberScheduled 4 numberReady 5 observedGeneration 6 updatedNumberScheduled 7 "
    "numberAvailable 8 numberUnavailable 9 collisionCount 10 conditions",
    "io.k8s.api.apps.v1.DaemonSetCondition 1 type 2 status 3 lastTransitionTime 4 reason 5 "
    "message",
    "io.k8s.api.autoscaling.v1.Scale 1 metadata 2 spec 3 status",
    "io.k8s.api.autoscaling.v1.ScaleSpec 1 replicas",
    "io.k8s.api.autoscaling.v1.ScaleStatus 1 replicas 2 selector",
    "io.k8s.api.policy.v1.PodDisruptionBudget 1 metadata 2 spec 3 status",
    "io.k8s.api.policy.v1.PodDisruptionBudgetSpec 1 minAvailable 2 selector 3 maxUnavailable "
    "4 unhealthyPodEvictionPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudgetStatus 1 observedGeneration 2 disruptedPods 3 "
    "disruptionsAllowed 4 currentHealthy 5 desiredHealthy 6 expectedPods 7 conditions",
    "io.k8s.api.policy.v1.Eviction 1 metadata 2 deleteOptions",
    "io.k8s.api.coordination.v1.Lease 1 metadata 2 spec",
    "io.k8s.api.coordination.v1.LeaseSpec 1 holderIdentity 2 leaseDurationSeconds 3 "
    "acquireTime 4 renewTime 5 leaseTransitions 6 strategy 7 preferredHolder",
    "io.k8s.api.events.v1.Event 1 metadata 2 eventTime 3 series 4 reportingController 5 "
    "reportingInstance 6 action 7 reason 8 regarding 9 related 10 note 11 type 12 "
    "deprecatedSource 13 deprecatedFirstTimestamp 14 deprecatedLastTimestamp 15 "
    "deprecatedCount",
    "io.k8s.api.events.v1.EventSeries 1 count 2 lastObservedTime",
    "io.k8s.api.discovery.v1.EndpointSlice 1 metadata 4 addressType 2 endpoints 3 ports",
    "io.k8s.api.discovery.v1.Endpoint 1 addresses 2 conditions 3 hostname 4 targetRef 5 "
    "deprecatedTopology 6 nodeName 7 zone 8 hints",
    "io.k8s.api.discovery.v1.EndpointConditions 1 ready 2 serving 3 terminating",
    "io.k8s.api.discovery.v1.EndpointPort 1 name 2 protocol 3 port 4 appProtocol",
    "io.k8s.api.rbac.v1.Role 1 metadata 2 rules",
    "io.k8s.api.rbac.v1.ClusterRole 1 metadata 2 rules 3 aggregationRule",
    "io.k8s.api.rbac.v1.AggregationRule 1 clusterRoleSelectors",
    "io.k8s.api.rbac.v1.PolicyRule 1 verbs 2 apiGroups 3 resources 4 resourceNames 5 "
    "nonResourceURLs",
    "io.k8s.api.rbac.v1.RoleBinding 1 metadata 2 subjects 3 roleRef",
    "io.k8s.api.rbac.v1.ClusterRoleBinding 1 metadata 2 subjects 3 roleRef",
    "io.k8s.api.rbac.v1.Subject 1 kind 2 apiGroup 3 name 4 namespace",
    "io.k8s.api.rbac.v1.RoleRef 1 apiGroup 2 kind 3 name",
    "io.k8s.api.networking.v1.NetworkPolicy 1 metadata 2 spec",
    "io.k8s.api.networking.v1.NetworkPolicySpec 1 podSelector 2 ingress 3 egress 4 "
    "policyTypes",
    "io.k8s.api.networking.v1.NetworkPolicyIngressRule 1 ports 2 from",
    "io.k8s.api.networking.v1.NetworkPolicyEgressRule 1 ports 2 to",
    "io.k8s.api.networking.v1.NetworkPolicyPort 1 protocol 2 port 3 endPort",
    "io.k8s.api.networking.v1.NetworkPolicyPeer 1 podSelector 2 namespaceSelector 3 ipBlock",
    "io.k8s.api.networking.v1.IPBlock 1 cidr 2 except",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler 1 metadata 2 spec 3 status",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerSpec 1 scaleTargetRef 2 minReplicas 3 "
    "maxReplicas 4 metrics 5 behavior",
    "io.k8s.api.autoscaling.v2.CrossVersionObjectReference 1 kind 2 name 3 apiVersion",
    "io.k8s.api.autoscaling.v2.MetricSpec 1 type 2 object 3 pods 4 resource 7 "
    "containerResource 5 external",
    "io.k8s.api.autoscaling.v2.ResourceMetricSource 1 name 2 target",
    "io.k8s.api.autoscaling.v2.MetricTarget 1 type 2 value 3 averageValue 4 "
    "averageUtilization",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerStatus 1 observedGeneration 2 "
    "lastScaleTime 3 currentReplicas 4 desiredReplicas 5 currentMetrics 6 conditions",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerCondition 1 type 2 status 3 "
    "lastTransitionTime 4 reason 5 message",
    "io.k8s.api.scheduling.v1.PriorityClass 1 metadata 2 value 3 globalDefault 4 description "
    "5 preemptionPolicy",
    "io.k8s.api.authentication.v1.TokenReview 1 metadata 2 spec 3 status",
    "io.k8s.api.authentication.v1.TokenReviewSpec 1 token 2 audiences",
    "io.k8s.api.authentication.v1.TokenReviewStatus 1 authenticated 2 user 4 audiences 3 "
    "error",
    "io.k8s.api.authentication.v1.UserInfo 1 username 2 uid 3 groups 4 extra",
    "io.k8s.api.authentication.v1.SelfSubjectReview 1 metadata 2 status",
    "io.k8s.api.authentication.v1.SelfSubjectReviewStatus 1 userInfo",
    "io.k8s.api.authentication.v1.TokenRequest 1 metadata 2 spec 3 status",
    "io.k8s.api.authentication.v1.TokenRequestSpec 1 audiences 4 expirationSeconds 3 "
    "boundObjectRef",
    "io.k8s.api.authentication.v1.TokenRequestStatus 1 token 2 expirationTimestamp",
    "io.k8s.api.authorization.v1.SelfSubjectAccessReview 1 metadata 2 spec 3 status",
    "io.k8s.api.authorization.v1.SelfSubjectAccessReviewSpec 1 resourceAttributes 2 "
    "nonResourceAttributes",
    "io.k8s.api.authorization.v1.SubjectAccessReview 1 metadata 2 spec 3 status",
    "io.k8s.api.authorization.v1.LocalSubjectAccessReview 1 metadata 2 spec 3 status",
    "io.k8s.api.authorization.v1.SubjectAccessReviewSpec 1 resourceAttributes 2 "
    "nonResourceAttributes 3 user 4 groups 5 extra 6 uid",
    "io.k8s.api.authorization.v1.ResourceAttributes 1 namespace 2 verb 3 group 4 version 5 "
    "resource 6 subresource 7 name 8 fieldSelector 9 labelSelector",
    "io.k8s.api.authorization.v1.NonResourceAttributes 1 path 2 verb",
    "io.k8s.api.authorization.v1.SubjectAccessReviewStatus 1 allowed 4 denied 2 reason 3 "
    "evaluationError",
    "io.k8s.api.authorization.v1.SelfSubjectRulesReview 1 metadata 2 spec 3 status",
    "io.k8s.api.authorization.v1.SelfSubjectRulesReviewSpec 1 namespace",
    "io.k8s.api.authorization.v1.SubjectRulesReviewStatus 1 resourceRules 2 nonResourceRules "
    "3 incomplete 4 evaluationError",
    "io.k8s.api.authorization.v1.ResourceRule 1 verbs 2 apiGroups 3 resources 4 resourceNames",
    "io.k8s.api.authorization.v1.NonResourceRule 1 verbs 2 nonResourceURLs",
    "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration 1 metadata",
    "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration 1 metadata",
    "io.k8s.api.admissionregistration.v1.MatchCondition 1 name 2 expression",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy 1 metadata 2 spec 3 status",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec 1 paramKind 2 "
    "matchConstraints 3 validations 4 failurePolicy 5 auditAnnotations 6 matchConditions 7 "
    "variables",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyStatus 1 observedGeneration "
    "2 typeChecking 3 conditions",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding 1 metadata 2 spec",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec 1 policyName 2 "
    "paramRef 3 matchResources 4 validationActions",
    NULL,
};
