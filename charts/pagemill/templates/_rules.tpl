{{/* The operator's rights in each namespace that it serves: by verb and resource, written from what its code uses. */}}
{{- define "pagemill.rules" -}}
{{ (.Files.Get "files/rbac.yaml" | fromYaml).namespaced | toYaml }}
{{- if .Values.autoscaling.prometheusTokens }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}

{{/* And where it serves all of them: what is in no namespace. */}}
{{- define "pagemill.clusterRules" -}}
{{ (.Files.Get "files/rbac.yaml" | fromYaml).cluster | toYaml }}
{{- end }}
