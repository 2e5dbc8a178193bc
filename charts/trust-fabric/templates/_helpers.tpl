{{/* Labels that select the pods of the nodes. */}}
{{- define "trust-fabric.selector" -}}
app.kubernetes.io/name: trust-fabric
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end }}

{{/* Labels of every object, without a component: (dict "root" . "component" "node"). */}}
{{- define "trust-fabric.labels" -}}
app.kubernetes.io/name: trust-fabric
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/version: {{ include "trust-fabric.version" .root | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- range $key, $value := .root.Values.deploy.labels }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "trust-fabric.version" -}}
{{ .Values.fabric.version | default .Chart.AppVersion }}
{{- end }}

{{- define "trust-fabric.image" -}}
{{ .Values.deploy.image.repository }}:{{ include "trust-fabric.version" . }}
{{- with .Values.deploy.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "trust-fabric.replicas" -}}
{{ .Values.fabric.replicas | default 3 | int }}
{{- end }}

{{/* The name of the service, which every certificate of a node has. */}}
{{- define "trust-fabric.host" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Whether the nodes present a service-account token to an issuer. */}}
{{- define "trust-fabric.presentsToken" -}}
{{- range .Values.fabric.issuers }}{{ with .bearerTokenFile }}yes{{ end }}{{ end }}
{{- end }}

{{/* The identity of cert-manager's certificate of a pod: the driver expands the variables. */}}
{{- define "trust-fabric.podIdentity" -}}
spiffe://{{ .Values.fabric.trustDomain }}/ns/${POD_NAMESPACE}/pod/${POD_NAME}
{{- end }}

{{/* Hosts of the certificate for callers beside the Service and the pod; with "addresses" the IP addresses, otherwise the
     names: (dict "root" . "addresses" <bool>). */}}
{{- define "trust-fabric.statedHosts" -}}
{{- $addresses := .addresses }}
{{- $found := list }}
{{- range prepend ((.root.Values.fabric.listen).hosts | default list) (urlParse .root.Values.fabric.issuer).hostname }}
{{- $host := trimAll "[]" . }}
{{- if eq $addresses (regexMatch "^[0-9.]+$|:" $host) }}
{{- $found = append $found $host }}
{{- end }}
{{- end }}
{{- join "," $found }}
{{- end }}

{{/* DNS names of the certificate for callers: (dict "root" . "pod" <the name of the pod>). */}}
{{- define "trust-fabric.dnsNames" -}}
{{- $host := include "trust-fabric.host" .root }}
{{- $release := .root.Release }}
{{- $stated := include "trust-fabric.statedHosts" (dict "root" .root "addresses" false) }}
{{- $names := concat (splitList "," $stated | compact) (list $host (printf "%s.cluster.local" $host)) }}
{{- $names = append $names (printf "%s.%s-peers.%s.svc" .pod $release.Name $release.Namespace) }}
{{- join "," $names }}
{{- end }}

{{- define "trust-fabric.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
# The default would widen the mode of the data at the second start, and the node refuses such a directory.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "trust-fabric.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}
