{{/* Sources of the volume of CAs and revocation lists: keys of ConfigMaps. */}}
{{- define "trust-fabric.authorities" -}}
{{- $pki := .Values.fabric.pki }}
{{- $files := list }}
{{- range $name, $file := dict "clientCA" "client-ca" "clientCRL" "client-crl" }}
{{- with get $pki $name }}{{ $files = append $files (dict "from" . "path" $file) }}{{ end }}
{{- end }}
{{- if gt (include "trust-fabric.replicas" . | int) 1 }}
{{- range $name, $file := dict "peerCA" "peer-ca" "peerCRL" "peer-crl" }}
{{- with get $pki $name }}{{ $files = append $files (dict "from" . "path" $file) }}{{ end }}
{{- end }}
{{- end }}
{{- range $index, $domain := $pki.trustDomains }}
{{- $files = append $files (dict "from" $domain.ca "path" (printf "domain-%d-ca" $index)) }}
{{- with $domain.crl }}{{ $files = append $files (dict "from" . "path" (printf "domain-%d-crl" $index)) }}{{ end }}
{{- end }}
{{- range $files }}
- configMap:
    name: {{ .from.name }}
    items:
      - key: {{ .from.key }}
        path: {{ .path }}.pem
{{- end }}
{{- end }}

{{/* A certificate of cert-manager, for one pod: (dict "root" . "issuer" <reference> "names" <whether for callers>). */}}
{{- define "trust-fabric.csi" -}}
driver: csi.cert-manager.io
readOnly: true
volumeAttributes:
  csi.cert-manager.io/issuer-name: {{ .issuer.name | quote }}
  csi.cert-manager.io/issuer-kind: {{ .issuer.kind | default "Issuer" | quote }}
  csi.cert-manager.io/issuer-group: {{ .issuer.group | default "cert-manager.io" | quote }}
  csi.cert-manager.io/uri-sans: {{ include "trust-fabric.podIdentity" .root | quote }}
  {{- if .names }}
  csi.cert-manager.io/dns-names: {{ include "trust-fabric.dnsNames" (dict "root" .root "pod" "${POD_NAME}") | quote }}
  {{- with include "trust-fabric.statedHosts" (dict "root" .root "addresses" true) }}
  csi.cert-manager.io/ip-sans: {{ . | quote }}
  {{- end }}
  {{- end }}
  csi.cert-manager.io/key-usages: "digital signature,server auth,client auth"
  csi.cert-manager.io/key-encoding: PKCS8
  csi.cert-manager.io/duration: 24h
  csi.cert-manager.io/fs-group: "65532"
{{- end }}
