{{- define "aviso-server.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "aviso-server.fullname" -}}
{{- $name := include "aviso-server.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "aviso-server.selectorLabels" -}}
app.kubernetes.io/name: {{ include "aviso-server.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "aviso-server.labels" -}}
{{ include "aviso-server.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "aviso-server.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "aviso-server.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "aviso-server.pullSecretName" -}}
{{- include "aviso-server.fullname" . | trunc 54 | trimSuffix "-" -}}-registry
{{- end -}}

{{/* "yes" where the data directory has to outlive the pod */}}
{{- define "aviso-server.keepsData" -}}
{{- if or (eq .Values.config.notification_backend.kind "sqlite") .Values.config.archive.enabled -}}yes{{- end -}}
{{- end -}}
