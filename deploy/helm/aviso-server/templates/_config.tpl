{{/* The configuration file: what the values say, with the few things that are found elsewhere in them. */}}
{{- define "aviso-server.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if not $config.application.base_url -}}
{{- $_ := set $config.application "base_url" (include "aviso-server.baseUrl" .) -}}
{{- end -}}
{{- $metrics := default dict $config.metrics -}}
{{- if not (hasKey $metrics "enabled") -}}
{{- $_ := set $metrics "enabled" .Values.metrics.enabled -}}
{{- end -}}
{{- if not $metrics.host -}}
{{- $_ := set $metrics "host" "0.0.0.0" -}}
{{- end -}}
{{- if not $metrics.port -}}
{{- $_ := set $metrics "port" .Values.metrics.port -}}
{{- end -}}
{{- $_ := set $config "metrics" $metrics -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "aviso-server.baseUrl" -}}
{{- if .Values.ingress.enabled -}}
{{- $ingress := include "aviso-server.ingress" . | fromYaml -}}
{{- $first := index $ingress.hosts 0 -}}
{{- printf "%s://%s" (ternary "https" "http" (not (empty $ingress.tls))) $first.host -}}
{{- else -}}
http://aviso-server
{{- end -}}
{{- end -}}

{{/* Hosts and tls as Kubernetes has them, whichever way they were given. */}}
{{- define "aviso-server.ingress" -}}
{{- $given := .Values.ingress -}}
{{- $hosts := $given.hosts -}}
{{- if $given.domain -}}
{{- $host := ternary (printf "%s.%s" $given.hostPrefix $given.domain) $given.domain (not (empty $given.hostPrefix)) -}}
{{- $hosts = list (dict "host" $host "paths" $given.paths) -}}
{{- end -}}
{{- if not $hosts -}}
{{- fail "ingress.hosts is empty: give at least one host, or ingress.hostPrefix and ingress.domain" -}}
{{- end -}}
{{- $tls := $given.tls -}}
{{- if kindIs "map" $tls -}}
{{- if $tls.enabled -}}
{{- if not $tls.secretName -}}
{{- fail "ingress.tls.secretName is empty: name the Secret with the certificate" -}}
{{- end -}}
{{- $names := list -}}
{{- range $hosts -}}
{{- $names = append $names .host -}}
{{- end -}}
{{- $tls = list (dict "hosts" $names "secretName" $tls.secretName) -}}
{{- else -}}
{{- $tls = list -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "hosts" $hosts "tls" $tls) -}}
{{- end -}}

{{/* What the ingress controller has to be told so that it lets streams through. */}}
{{- define "aviso-server.ingressAnnotations" -}}
{{- $tuning := .Values.ingress.streamingTuning -}}
{{- $tuned := dict -}}
{{- if and $tuning.enabled $tuning.controller -}}
{{- $read := int $tuning.proxyReadTimeoutSeconds -}}
{{- $send := int $tuning.proxySendTimeoutSeconds -}}
{{- if eq $tuning.controller "nginx-org" -}}
{{- $_ := set $tuned "nginx.org/proxy-buffering" (ternary "true" "false" $tuning.proxyBuffering) -}}
{{- $_ := set $tuned "nginx.org/proxy-read-timeout" (printf "%ds" $read) -}}
{{- $_ := set $tuned "nginx.org/proxy-send-timeout" (printf "%ds" $send) -}}
{{- else if eq $tuning.controller "ingress-nginx" -}}
{{- $_ := set $tuned "nginx.ingress.kubernetes.io/proxy-buffering" (ternary "on" "off" $tuning.proxyBuffering) -}}
{{- $_ := set $tuned "nginx.ingress.kubernetes.io/proxy-read-timeout" (printf "%d" $read) -}}
{{- $_ := set $tuned "nginx.ingress.kubernetes.io/proxy-send-timeout" (printf "%d" $send) -}}
{{- else -}}
{{- fail (printf "ingress.streamingTuning.controller is '%s', accepted are nginx-org, ingress-nginx and an empty text" $tuning.controller) -}}
{{- end -}}
{{- end -}}
{{- $all := merge (deepCopy (default dict .Values.ingress.annotations)) $tuned -}}
{{- if $all -}}
{{- toYaml $all -}}
{{- end -}}
{{- end -}}
