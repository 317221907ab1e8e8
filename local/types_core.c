/* Core, meta: the table of built-in types (syntax in types.h). */
#include "local/types.h"

const char *const types_table_core[] = {
    "@io.k8s.apimachinery.pkg.apis.meta.v1 meta/v1",
    "ObjectMeta name:s generateName:s namespace:s uid:s resourceVersion:s selfLink:s generation:i "
    "creationTimestamp:t deletionTimestamp:t deletionGracePeriodSeconds:i labels:{s} "
    "annotations:{s} "
    "ownerReferences:[OwnerReference|uid] finalizers:[s=] managedFields:[ManagedFieldsEntry]",
    "~OwnerReference apiVersion:s kind:s name:s uid:s controller:b blockOwnerDeletion:b",
    "ManagedFieldsEntry manager:s operation:s apiVersion:s time:t fieldsType:s fieldsV1:o "
    "subresource:s",
    "ListMeta resourceVersion:s continue:s remainingItemCount:i selfLink:s",
    "~LabelSelector matchLabels:{s} matchExpressions:[LabelSelectorRequirement]",
    "LabelSelectorRequirement key:s! operator:s! values:[s]",
    "DeleteOptions kind:s apiVersion:s gracePeriodSeconds:i preconditions:Preconditions "
    "orphanDependents:b propagationPolicy:s dryRun:[s] "
    "ignoreStoreReadErrorWithClusterBreakingPotential:b",
    "Preconditions uid:s resourceVersion:s",
    "Condition type:s! status:s! observedGeneration:i lastTransitionTime:t! reason:s! message:s!",

    "@io.k8s.api.core.v1 /v1",
    "*Pod spec:PodSpec status:PodStatus",
    "PodSpec volumes:[Volume|name] initContainers:[Container|name] containers:[Container|name]! "
    "ephemeralContainers:[EphemeralContainer|name] restartPolicy:s=\"Always\" "
    "terminationGracePeriodSeconds:i=30 activeDeadlineSeconds:i dnsPolicy:s=\"ClusterFirst\" "
    "nodeSelector:{s}~ serviceAccountName:s serviceAccount:s automountServiceAccountToken:b "
    "nodeName:s "
    "hostNetwork:b hostPID:b hostIPC:b shareProcessNamespace:b "
    "securityContext:PodSecurityContext={} "
    "imagePullSecrets:[LocalObjectReference|name] hostname:s subdomain:s affinity:Affinity "
    "schedulerName:s=\"default-scheduler\" tolerations:[Toleration] hostAliases:[HostAlias|ip] "
    "priorityClassName:s priority:j dnsConfig:PodDNSConfig readinessGates:[PodReadinessGate] "
    "runtimeClassName:s enableServiceLinks:b preemptionPolicy:s overhead:{q} "
    "topologySpreadConstraints:[TopologySpreadConstraint|topologyKey,whenUnsatisfiable] "
    "setHostnameAsFQDN:b os:PodOS hostUsers:b schedulingGates:[PodSchedulingGate|name] "
    "resourceClaims:[PodResourceClaim|name] resources:ResourceRequirements hostnameOverride:s "
    "workloadRef:o",
    "Container name:s! image:s command:[s] args:[s] workingDir:s "
    "ports:[ContainerPort|containerPort,protocol] envFrom:[EnvFromSource] env:[EnvVar|name] "
    "resources:ResourceRequirements={} resizePolicy:[ContainerResizePolicy] restartPolicy:s "
    "restartPolicyRules:[v] volumeMounts:[VolumeMount|mountPath] "
    "volumeDevices:[VolumeDevice|devicePath] livenessProbe:Probe readinessProbe:Probe "
    "startupProbe:Probe lifecycle:Lifecycle terminationMessagePath:s=\"/dev/termination-log\" "
    "terminationMessagePolicy:s=\"File\" imagePullPolicy:s securityContext:SecurityContext stdin:b "
    "stdinOnce:b tty:b",
    "EphemeralContainer name:s! image:s command:[s] args:[s] workingDir:s "
    "ports:[ContainerPort|containerPort,protocol] envFrom:[EnvFromSource] env:[EnvVar|name] "
    "resources:ResourceRequirements={} volumeMounts:[VolumeMount|mountPath] "
    "terminationMessagePath:s=\"/dev/termination-log\" terminationMessagePolicy:s=\"File\" "
    "imagePullPolicy:s securityContext:SecurityContext stdin:b stdinOnce:b tty:b "
    "targetContainerName:s",
    "ContainerPort name:s hostPort:j containerPort:j! protocol:s=\"TCP\" hostIP:s",
    "ContainerResizePolicy resourceName:s! restartPolicy:s!",
    "EnvVar name:s! value:s valueFrom:EnvVarSource",
    "EnvVarSource fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector "
    "configMapKeyRef:ConfigMapKeySelector secretKeyRef:SecretKeySelector fileKeyRef:o",
    "~ObjectFieldSelector apiVersion:s=\"v1\" fieldPath:s!",
    "~ResourceFieldSelector containerName:s resource:s! divisor:q=\"0\"",
    "~ConfigMapKeySelector name:s=\"\" key:s! optional:b",
    "~SecretKeySelector name:s=\"\" key:s! optional:b",
    "EnvFromSource prefix:s configMapRef:ConfigMapEnvSource secretRef:SecretEnvSource",
    "ConfigMapEnvSource name:s=\"\" optional:b",
    "SecretEnvSource name:s=\"\" optional:b",
    "ResourceRequirements limits:{q} requests:{q} claims:[ResourceClaim|name]",
    "ResourceClaim name:s! request:s",
    "VolumeMount name:s! readOnly:b recursiveReadOnly:s mountPath:s! subPath:s mountPropagation:s "
    "subPathExpr:s",
    "VolumeDevice name:s! devicePath:s!",
    "Probe exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction grpc:GRPCAction "
    "initialDelaySeconds:j timeoutSeconds:j=1 periodSeconds:j=10 successThreshold:j=1 "
    "failureThreshold:j=3 terminationGracePeriodSeconds:i",
    "ExecAction command:[s]",
    "HTTPGetAction path:s=\"/\" port:x! host:s scheme:s=\"HTTP\" httpHeaders:[HTTPHeader]",
    "HTTPHeader name:s! value:s!",
    "TCPSocketAction port:x! host:s",
    "GRPCAction port:j! service:s=\"\"",
    "Lifecycle postStart:LifecycleHandler preStop:LifecycleHandler stopSignal:s",
    "LifecycleHandler exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction "
    "sleep:SleepAction",
    "SleepAction seconds:i!",
    "SecurityContext capabilities:Capabilities privileged:b seLinuxOptions:o windowsOptions:o "
    "runAsUser:i runAsGroup:i runAsNonRoot:b readOnlyRootFilesystem:b allowPrivilegeEscalation:b "
    "procMount:s seccompProfile:SeccompProfile appArmorProfile:AppArmorProfile",
    "Capabilities add:[s] drop:[s]",
    "SeccompProfile type:s! localhostProfile:s",
    "AppArmorProfile type:s! localhostProfile:s",
    "PodSecurityContext seLinuxOptions:o windowsOptions:o runAsUser:i runAsGroup:i runAsNonRoot:b "
    "supplementalGroups:[i] supplementalGroupsPolicy:s fsGroup:i sysctls:[Sysctl] "
    "fsGroupChangePolicy:s seccompProfile:SeccompProfile appArmorProfile:AppArmorProfile "
    "seLinuxChangePolicy:s",
    "Sysctl name:s! value:s!",
    "~LocalObjectReference name:s=\"\"",
    "Affinity nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity",
    "NodeAffinity requiredDuringSchedulingIgnoredDuringExecution:NodeSelector "
    "preferredDuringSchedulingIgnoredDuringExecution:[PreferredSchedulingTerm]",
    "~NodeSelector nodeSelectorTerms:[NodeSelectorTerm]!",
    "~NodeSelectorTerm matchExpressions:[NodeSelectorRequirement] "
    "matchFields:[NodeSelectorRequirement]",
    "NodeSelectorRequirement key:s! operator:s! values:[s]",
    "PreferredSchedulingTerm weight:j! preference:NodeSelectorTerm!",
    "PodAffinity requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm] "
    "preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]",
    "PodAntiAffinity requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm] "
    "preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]",
    "PodAffinityTerm labelSelector:LabelSelector namespaces:[s] topologyKey:s! "
    "namespaceSelector:LabelSelector matchLabelKeys:[s] mismatchLabelKeys:[s]",
    "WeightedPodAffinityTerm weight:j! podAffinityTerm:PodAffinityTerm!",
    "Toleration key:s operator:s value:s effect:s tolerationSeconds:i",
    "HostAlias ip:s! hostnames:[s]",
    "PodDNSConfig nameservers:[s] searches:[s] options:[PodDNSConfigOption]",
    "PodDNSConfigOption name:s value:s",
    "PodReadinessGate conditionType:s!",
    "TopologySpreadConstraint maxSkew:j! topologyKey:s! whenUnsatisfiable:s! "
    "labelSelector:LabelSelector minDomains:j nodeAffinityPolicy:s nodeTaintsPolicy:s "
    "matchLabelKeys:[s]",
    "PodOS name:s!",
    "PodSchedulingGate name:s!",
    "PodResourceClaim name:s! resourceClaimName:s resourceClaimTemplateName:s",
    "Volume name:s! hostPath:HostPathVolumeSource emptyDir:EmptyDirVolumeSource "
    "secret:SecretVolumeSource configMap:ConfigMapVolumeSource downwardAPI:DownwardAPIVolumeSource "
    "projected:ProjectedVolumeSource persistentVolumeClaim:PersistentVolumeClaimVolumeSource "
    "image:ImageVolumeSource nfs:NFSVolumeSource csi:o ephemeral:o iscsi:o fc:o "
    "gcePersistentDisk:o "
    "awsElasticBlockStore:o azureDisk:o azureFile:o cephfs:o cinder:o flexVolume:o flocker:o "
    "gitRepo:o glusterfs:o photonPersistentDisk:o portworxVolume:o quobyte:o rbd:o scaleIO:o "
    "storageos:o vsphereVolume:o",
    "HostPathVolumeSource path:s! type:s=\"\"",
    "EmptyDirVolumeSource medium:s sizeLimit:q",
    "SecretVolumeSource secretName:s items:[KeyToPath] defaultMode:j=420 optional:b",
    "ConfigMapVolumeSource name:s=\"\" items:[KeyToPath] defaultMode:j=420 optional:b",
    "KeyToPath key:s! path:s! mode:j",
    "DownwardAPIVolumeSource items:[DownwardAPIVolumeFile] defaultMode:j=420",
    "DownwardAPIVolumeFile path:s! fieldRef:ObjectFieldSelector "
    "resourceFieldRef:ResourceFieldSelector mode:j",
    "ProjectedVolumeSource sources:[VolumeProjection] defaultMode:j=420",
    "VolumeProjection secret:SecretProjection configMap:ConfigMapProjection "
    "downwardAPI:DownwardAPIProjection serviceAccountToken:ServiceAccountTokenProjection "
    "clusterTrustBundle:o podCertificate:o",
    "SecretProjection name:s=\"\" items:[KeyToPath] optional:b",
    "ConfigMapProjection name:s=\"\" items:[KeyToPath] optional:b",
    "DownwardAPIProjection items:[DownwardAPIVolumeFile]",
    "ServiceAccountTokenProjection audience:s expirationSeconds:i=3600 path:s!",
    "PersistentVolumeClaimVolumeSource claimName:s! readOnly:b",
    "ImageVolumeSource reference:s pullPolicy:s",
    "NFSVolumeSource server:s! path:s! readOnly:b",
    "PodStatus phase:s conditions:[PodCondition|type] message:s reason:s nominatedNodeName:s "
    "hostIP:s "
    "hostIPs:[HostIP] podIP:s podIPs:[PodIP|ip] startTime:t "
    "initContainerStatuses:[ContainerStatus] containerStatuses:[ContainerStatus] qosClass:s "
    "ephemeralContainerStatuses:[ContainerStatus] resize:s resourceClaimStatuses:[v] "
    "observedGeneration:i resources:ResourceRequirements allocatedResources:{q} "
    "extendedResourceClaimStatus:o",
    "PodCondition type:s! status:s! lastProbeTime:t lastTransitionTime:t reason:s message:s "
    "observedGeneration:i",
    "HostIP ip:s!",
    "PodIP ip:s!",
    "ContainerStatus name:s! state:ContainerState lastState:ContainerState ready:b! "
    "restartCount:j! "
    "image:s! imageID:s! containerID:s started:b allocatedResources:{q} "
    "resources:ResourceRequirements volumeMounts:[VolumeMountStatus|mountPath] user:o "
    "allocatedResourcesStatus:[v] stopSignal:s",
    "VolumeMountStatus name:s! mountPath:s! readOnly:b recursiveReadOnly:s",
    "ContainerState waiting:ContainerStateWaiting running:ContainerStateRunning "
    "terminated:ContainerStateTerminated",
    "ContainerStateWaiting reason:s message:s",
    "ContainerStateRunning startedAt:t",
    "ContainerStateTerminated exitCode:j! signal:j reason:s message:s startedAt:t finishedAt:t "
    "containerID:s",
    "PodTemplateSpec metadata:ObjectMeta spec:PodSpec",

    "*Namespace spec:NamespaceSpec status:NamespaceStatus",
    "NamespaceSpec finalizers:[s]",
    "NamespaceStatus phase:s conditions:[NamespaceCondition|type]",
    "NamespaceCondition type:s! status:s! lastTransitionTime:t reason:s message:s",
    "*ConfigMap immutable:b data:{s} binaryData:{y}",
    "*Secret immutable:b data:{y} stringData:{s} type:s",
    "*ServiceAccount secrets:[ObjectReference|name] imagePullSecrets:[LocalObjectReference] "
    "automountServiceAccountToken:b",
    "~ObjectReference kind:s namespace:s name:s uid:s apiVersion:s resourceVersion:s fieldPath:s",
    "*Service spec:ServiceSpec status:ServiceStatus",
    "ServiceSpec ports:[ServicePort|port,protocol] selector:{s}~ clusterIP:s clusterIPs:[s] "
    "type:s=\"ClusterIP\" externalIPs:[s] sessionAffinity:s=\"None\" loadBalancerIP:s "
    "loadBalancerSourceRanges:[s] externalName:s externalTrafficPolicy:s healthCheckNodePort:j "
    "publishNotReadyAddresses:b sessionAffinityConfig:o ipFamilies:[s] ipFamilyPolicy:s "
    "allocateLoadBalancerNodePorts:b loadBalancerClass:s internalTrafficPolicy:s "
    "trafficDistribution:s",
    "ServicePort name:s protocol:s=\"TCP\" appProtocol:s port:j! targetPort:x nodePort:j",
    "ServiceStatus loadBalancer:LoadBalancerStatus conditions:[Condition|type]",
    "LoadBalancerStatus ingress:[LoadBalancerIngress]",
    "LoadBalancerIngress ip:s hostname:s ipMode:s ports:[v]",
    "*Node spec:NodeSpec status:NodeStatus",
    "NodeSpec podCIDR:s podCIDRs:[s=] providerID:s unschedulable:b taints:[Taint] configSource:o "
    "externalID:s",
    "Taint key:s! value:s effect:s! timeAdded:t",
    "NodeStatus capacity:{q} allocatable:{q} phase:s conditions:[NodeCondition|type] "
    "addresses:[NodeAddress|type] daemonEndpoints:NodeDaemonEndpoints nodeInfo:NodeSystemInfo "
    "images:[ContainerImage] volumesInUse:[s] volumesAttached:[v] config:o runtimeHandlers:[v] "
    "features:o declaredFeatures:[s]",
    "NodeCondition type:s! status:s! lastHeartbeatTime:t lastTransitionTime:t reason:s message:s",
    "NodeAddress type:s! address:s!",
    "NodeDaemonEndpoints kubeletEndpoint:DaemonEndpoint",
    "DaemonEndpoint Port:j!",
    "NodeSystemInfo machineID:s! systemUUID:s! bootID:s! kernelVersion:s! osImage:s! "
    "containerRuntimeVersion:s! kubeletVersion:s! kubeProxyVersion:s! operatingSystem:s! "
    "architecture:s! swap:o",
    "ContainerImage names:[s] sizeBytes:i",
    "*Event involvedObject:ObjectReference! reason:s message:s source:EventSource firstTimestamp:t "
    "lastTimestamp:t count:j type:s eventTime:t series:EventSeries action:s "
    "related:ObjectReference "
    "reportingComponent:s reportingInstance:s",
    "EventSource component:s host:s",
    "EventSeries count:j lastObservedTime:t",
    "*Endpoints subsets:[EndpointSubset]",
    "EndpointSubset addresses:[EndpointAddress] notReadyAddresses:[EndpointAddress] "
    "ports:[EndpointPort]",
    "EndpointAddress ip:s! hostname:s nodeName:s targetRef:ObjectReference",
    "EndpointPort name:s port:j! protocol:s=\"TCP\" appProtocol:s",
    "*Binding target:ObjectReference!",
    "*ResourceQuota spec:ResourceQuotaSpec status:ResourceQuotaStatus",
    "ResourceQuotaSpec hard:{q} scopes:[s] scopeSelector:o",
    "ResourceQuotaStatus hard:{q} used:{q}",
    "*LimitRange spec:o",
    "*PersistentVolumeClaim spec:o status:o",
    "*PersistentVolume spec:o status:o",
    NULL,
};
