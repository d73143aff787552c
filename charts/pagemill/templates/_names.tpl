{{/* The name of everything that belongs to the operator; unique per release. */}}
{{- define "pagemill.name" -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* What the Deployment's selector asks for; never changes for a release. */}}
{{- define "pagemill.selector" -}}
app.kubernetes.io/name: pagemill-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pagemill.labels" -}}
{{ include "pagemill.selector" . }}
app.kubernetes.io/part-of: pagemill
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
