{{- /* What selects the pods of one release; the job's name in Prometheus is the first. */ -}}
{{- define "selector" -}}
app.kubernetes.io/name: ovq-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
