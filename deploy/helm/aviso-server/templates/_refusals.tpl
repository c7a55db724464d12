{{/* Values that would make pods that cannot work. */}}
{{- define "aviso-server.refusals" -}}
{{- $kind := .Values.config.notification_backend.kind -}}
{{- $archive := .Values.config.archive.enabled -}}
{{- if and (ne $kind "jetstream") .Values.autoscaling.enabled -}}
{{- fail (printf "autoscaling.enabled needs config.notification_backend.kind: jetstream, not %s, whose log belongs to one pod" $kind) -}}
{{- end -}}
{{- if and (ne $kind "jetstream") (gt (int .Values.replicaCount) 1) -}}
{{- fail (printf "replicaCount above 1 needs config.notification_backend.kind: jetstream, not %s, whose log belongs to one pod" $kind) -}}
{{- end -}}
{{- if and $archive (or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1)) -}}
{{- fail "config.archive.enabled needs replicaCount: 1 and no autoscaling, as an archive has one keeper; for several pods leave it off and run `aviso-server pipeline archive` once beside them" -}}
{{- end -}}
{{- if and $archive (eq $kind "in_memory") -}}
{{- fail "config.archive.enabled needs config.notification_backend.kind: sqlite or jetstream, not in_memory" -}}
{{- end -}}
{{- if .Values.nats.enabled -}}
{{- fail "nats.enabled: this chart brings no broker; install the NATS chart as a release of its own, set config.notification_backend.jetstream.nats_url to its service, and nats.enabled to false" -}}
{{- end -}}
{{- $authotron := index .Values "auth-o-tron" -}}
{{- if $authotron.enabled -}}
{{- fail "auth-o-tron.enabled: this chart brings no auth-o-tron; install its chart as a release of its own, set config.auth.auth_o_tron_url to its service, and auth-o-tron.enabled to false" -}}
{{- end -}}
{{- end -}}
