{{- define "baton.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels of every object; $name is the program's. */}}
{{- define "baton.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
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

{{- define "baton.podMeta" -}}
labels: {app.kubernetes.io/name: {{ .name }}}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .port | quote }}
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

{{- /* Only what differs from the programs' own defaults. */}}
{{- define "baton.logEnv" -}}
{{- if ne .Values.log.level "info" }}
- {name: BATON_LOG_LEVEL, value: {{ .Values.log.level }}}
{{- end }}
{{- if ne .Values.log.format "json" }}
- {name: BATON_LOG_FORMAT, value: {{ .Values.log.format }}}
{{- end }}
{{- end }}

{{- define "baton.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  {{- with .period }}
  periodSeconds: {{ . }}
  {{- end }}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  failureThreshold: 6
{{- end }}

{{- define "baton.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
