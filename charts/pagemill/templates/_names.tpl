{{/* The name of everything that belongs to the operator; unique per release, whose name Helm holds to 53 characters. */}}
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

{{- define "pagemill.metricsService" -}}
{{- printf "%s-metrics" (include "pagemill.name" . | trunc 55 | trimSuffix "-") -}}
{{- end }}

{{/* The webhook's Service, configuration and certificate. */}}
{{- define "pagemill.webhook" -}}
{{- printf "%s-webhook" (include "pagemill.name" . | trunc 55 | trimSuffix "-") -}}
{{- end }}

{{/* The Secret that the operator reads its certificate from. */}}
{{- define "pagemill.webhookSecret" -}}
{{- $given := .Values.webhook.certificate.secretName -}}
{{- if eq .Values.webhook.certificate.mode "helm" -}}{{ include "pagemill.webhook" . }}
{{- else -}}{{ $given | default (include "pagemill.webhook" .) }}{{- end -}}
{{- end }}
