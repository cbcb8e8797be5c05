{{- define "milepost.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "milepost.coordinator" -}}{{ include "milepost.fullname" . }}-coordinator{{- end -}}

{{- define "milepost.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "milepost.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Of every pod and object; (dict "root" $ "component" "worker"). */}}
{{- define "milepost.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "milepost.labels" -}}
{{ include "milepost.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "milepost.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* What the images can do with: no root, nothing writable, no rights. */}}
{{- define "milepost.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "milepost.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where a pod may run, and the like; (dict "root" $ "of" .Values.coordinator), "account" where it
is one of its own. */}}
{{- define "milepost.placement" -}}
serviceAccountName: {{ default (include "milepost.account" .root) .account }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .of.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "milepost.coordinatorTls" -}}
{{- default (printf "%s-tls" (include "milepost.coordinator" .)) .Values.coordinator.tls.secretName -}}
{{- end -}}

{{/* The secret whose ca.crt says whom workers trust. */}}
{{- define "milepost.authority" -}}
{{- if .Values.workers.authoritySecretName -}}
{{- .Values.workers.authoritySecretName -}}
{{- else if and .Values.coordinator.enabled (not .Values.workers.coordinator) -}}
{{- include "milepost.coordinatorTls" . -}}
{{- else -}}
{{- fail "workers.authoritySecretName: needed for joinServiceAccount with coordinators elsewhere" -}}
{{- end -}}
{{- end -}}

{{/* The name of one coordinator; (dict "root" $ "number" 0). */}}
{{- define "milepost.coordinatorPod" -}}
{{- $name := include "milepost.coordinator" .root -}}
{{ $name }}-{{ .number }}.{{ $name }}-pods.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{/* What --coordinator is: the service; where others stand by, each of them. */}}
{{- define "milepost.address" -}}
{{- if .Values.workers.coordinator -}}
{{- .Values.workers.coordinator -}}
{{- else if not .Values.coordinator.enabled -}}
{{- fail "workers.coordinator: needed where coordinator.enabled is false" -}}
{{- else if gt (int .Values.coordinator.replicas) 1 -}}
{{- $all := list -}}
{{- range $number := until (int .Values.coordinator.replicas) -}}
{{- $all = append $all (printf "%s:7070" (include "milepost.coordinatorPod" (dict "root" $ "number" $number))) -}}
{{- end -}}
{{- join "," $all -}}
{{- else -}}
{{- include "milepost.coordinator" . }}.{{ .Release.Namespace }}.svc:7070
{{- end -}}
{{- end -}}
