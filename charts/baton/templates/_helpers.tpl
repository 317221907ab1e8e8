{{- define "baton.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "baton.image" -}}
{{ .Values.image.repository }}:{{ include "baton.tag" . }}
{{- end }}

{{- define "baton.workerImage" -}}
{{ .Values.controller.workerImage | default (printf "%s-worker:%s" .Values.image.repository (include "baton.tag" .)) }}
{{- end }}

{{- /* Labels of every object; name is the program's. */}}
{{- define "baton.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "baton.meta" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "baton.labels" . | nindent 2 }}
{{- end }}

{{- define "baton.clusterMeta" -}}
name: {{ .name }}
labels:
  {{- include "baton.labels" . | nindent 2 }}
{{- end }}

{{- /* No version among a pod's labels: an upgrade that changes nothing else must not restart it. */}}
{{- define "baton.podMeta" -}}
labels: {app.kubernetes.io/name: {{ .name }}}
{{- $notes := dict }}
{{- if .root.Values.monitoring.scrapeAnnotations }}
{{- $notes = dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .port) }}
{{- end }}
{{- with merge (deepCopy (.notes | default dict)) $notes }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "baton.containerImage" -}}
image: {{ include "baton.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "baton.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "baton.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Replicas on different nodes where there are several. */}}
{{- define "baton.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {app.kubernetes.io/name: {{ . }}}
{{- end }}

{{- /* Only what differs from the programs' own defaults. */}}
{{- define "baton.logEnv" -}}
{{- if ne .Values.log.level "info" }}
- {name: BATON_LOG_LEVEL, value: {{ .Values.log.level }}}
{{- end }}
{{- if ne .Values.log.format "json" }}
- {name: BATON_LOG_FORMAT, value: {{ .Values.log.format }}}
{{- end }}
{{- end }}

{{- define "baton.extraEnv" -}}
{{- range .extraEnv }}
{{- if hasKey . "value" }}
- {name: {{ .name }}, value: {{ .value | toString | quote }}}
{{- else }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  timeoutSeconds: 5
  {{- with .period }}
  periodSeconds: {{ . }}
  {{- end }}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "baton.podSecurity" -}}
securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "baton.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "baton.budget" -}}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "baton.meta" .me | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .me.name }}}
{{- end }}
{{- end }}

{{- /* A Role and its binding, or a ClusterRole and its (cluster: true); rules is a YAML text, ns where the Role is. */}}
{{- define "baton.bind" -}}
{{- $kind := ternary "ClusterRole" "Role" (default false .cluster) }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata: {{- include (ternary "baton.clusterMeta" "baton.meta" (default false .cluster)) .me | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ .me.name }}}
subjects:
  - {kind: ServiceAccount, name: {{ .me.name }}, namespace: {{ .me.root.Release.Namespace }}}
{{- end }}

{{- /* Not empty: helm uninstall deletes what runs in the namespace. */}}
{{- define "baton.deletesWorkloads" -}}
{{- if or .Values.uninstall.deleteWorkloads (not .Values.crds.keep) }}yes{{ end }}
{{- end }}
