{{/*
The configuration of a node, as TOML. fabric-spec/src/config.rs writes the same from the same values, and a test compares
the two for every file of values.
*/}}
{{- define "trust-fabric.config" -}}
{{- $fabric := .Values.fabric }}
{{- $config := dict }}
{{- $_ := set $config "node" (dict "data_dir" "/var/lib/trust-fabric/data") }}
{{- $_ := set $config "listen" (dict) }}
{{- include "trust-fabric.listen" (dict "root" . "section" $config.listen) }}
{{- $_ := set $config "tls" (dict) }}
{{- include "trust-fabric.tls" (dict "pki" $fabric.pki "section" $config.tls) }}
{{- $_ := set $config "fabric" (dict "issuer" $fabric.issuer "trust_domain" $fabric.trustDomain) }}
{{- $directory := ternary "/etc/trust-fabric/policy" "/etc/trust-fabric/policies" (hasKey $fabric "policy") }}
{{- $_ := set $config "policy" (dict "directory" $directory) }}
{{- $_ := set $config "cluster" (dict) }}
{{- include "trust-fabric.cluster" (dict "root" . "section" $config.cluster) }}
{{- range $name := list "callers" "issuers" "signals" "transmitter" "federation" "outbound" "blastRadius" "limits" "metrics" "log" }}
{{- if hasKey $fabric $name }}
{{- $copy := dict }}
{{- include "trust-fabric.snake" (dict "name" $name "value" (get $fabric $name) "copy" $copy) }}
{{- $_ := set $config (snakecase $name) $copy.value }}
{{- end }}
{{- end }}
{{- range (($config.federation).peers) }}
{{- if and .disclose (eq (len .disclose) 1) (has (first .disclose) (list "own" "digests")) }}
{{- $_ := set . "disclose" (first .disclose) }}
{{- end }}
{{- end }}
{{- toToml $config }}
{{- end }}

{{/*
Sets copy.value to a copy of value with names in snake case and whole numbers: values have numbers as floats, which TOML
distinguishes. The keys inside blastRadius are names of the user.
*/}}
{{- define "trust-fabric.snake" -}}
{{- if kindIs "map" .value }}
{{- $result := dict }}
{{- $isKept := eq .name "blastRadius" }}
{{- range $name, $value := .value }}
{{- $copy := dict "value" $value }}
{{- if not $isKept }}
{{- include "trust-fabric.snake" (dict "name" $name "value" $value "copy" $copy) }}
{{- end }}
{{- $_ := set $result (ternary $name (snakecase $name) $isKept) $copy.value }}
{{- end }}
{{- $_ := set .copy "value" $result }}
{{- else if kindIs "slice" .value }}
{{- $result := list }}
{{- $name := .name }}
{{- range $item := .value }}
{{- $copy := dict }}
{{- include "trust-fabric.snake" (dict "name" $name "value" $item "copy" $copy) }}
{{- $result = append $result $copy.value }}
{{- end }}
{{- $_ := set .copy "value" $result }}
{{- else if kindIs "float64" .value }}
{{- $_ := set .copy "value" (int64 .value) }}
{{- else }}
{{- $_ := set .copy "value" .value }}
{{- end }}
{{- end }}

{{- define "trust-fabric.listen" -}}
{{- $root := .root }}
{{- $name := $root.Release.Name }}
{{- $namespace := $root.Release.Namespace }}
{{- $stated := $root.Values.fabric.listen | default dict }}
{{- $service := printf "%s.%s" $name $namespace }}
{{- $hosts := list $name $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service) }}
{{- range $id := untilStep 1 (include "trust-fabric.replicas" $root | int | add1 | int) 1 }}
{{- $hosts = append $hosts (printf "%s-%d.%s-peers.%s.svc" $name $id $name $namespace) }}
{{- end }}
{{- $_ := set .section "https" "0.0.0.0:8694" }}
{{- $_ := set .section "hosts" (concat $hosts ($stated.hosts | default list)) }}
{{- $_ := set .section "shutdown_delay" ($stated.shutdownDelay | default "5s") }}
{{- end }}

{{- define "trust-fabric.tls" -}}
{{- $pki := .pki }}
{{- $section := .section }}
{{- $ca := "/etc/trust-fabric/ca/client-ca.pem" }}
{{- if eq $pki.mode "certManagerCsi" }}
{{- $_ := set $section "certificate" "/etc/trust-fabric/tls/tls.crt" }}
{{- $_ := set $section "private_key" "/etc/trust-fabric/tls/tls.key" }}
{{- else if eq $pki.mode "spire" }}
{{- $_ := set $section "certificate" "/run/trust-fabric/svid/svid.pem" }}
{{- $_ := set $section "private_key" "/run/trust-fabric/svid/svid-key.pem" }}
{{- if not $pki.clientCA }}{{ $ca = "/run/trust-fabric/svid/bundle.pem" }}{{ end }}
{{- else }}
{{- $_ := set $section "certificate" "/etc/trust-fabric/pki/node.pem" }}
{{- $_ := set $section "private_key" "/etc/trust-fabric/pki/node-key.pem" }}
{{- if not $pki.clientCA }}{{ $ca = "/etc/trust-fabric/pki/ca.pem" }}{{ end }}
{{- end }}
{{- $_ := set $section "client_ca" $ca }}
{{- if $pki.clientCRL }}{{ $_ := set $section "client_crl" "/etc/trust-fabric/ca/client-crl.pem" }}{{ end }}
{{- if $pki.clientTrustDomain }}{{ $_ := set $section "client_trust_domain" $pki.clientTrustDomain }}{{ end }}
{{- if hasKey $pki "trustDomains" }}
{{- $rows := list }}
{{- range $index, $row := $pki.trustDomains }}
{{- $domain := dict "name" $row.name "ca" (printf "/etc/trust-fabric/ca/domain-%d-ca.pem" $index) }}
{{- if $row.crl }}{{ $_ := set $domain "crl" (printf "/etc/trust-fabric/ca/domain-%d-crl.pem" $index) }}{{ end }}
{{- $rows = append $rows $domain }}
{{- end }}
{{- $_ := set $section "trust_domains" $rows }}
{{- end }}
{{- end }}

{{- define "trust-fabric.cluster" -}}
{{- $root := .root }}
{{- $section := .section }}
{{- $fabric := $root.Values.fabric }}
{{- $pki := $fabric.pki }}
{{- $copy := dict }}
{{- include "trust-fabric.snake" (dict "name" "cluster" "value" ($fabric.cluster | default dict) "copy" $copy) }}
{{- range $name, $value := $copy.value }}{{ $_ := set $section $name $value }}{{ end }}
{{- $replicas := include "trust-fabric.replicas" $root | int }}
{{- if gt $replicas 1 }}
{{- $ca := "/etc/trust-fabric/ca/peer-ca.pem" }}
{{- if eq $pki.mode "certManagerCsi" }}
{{- $_ := set $section "certificate" "/etc/trust-fabric/peers/tls.crt" }}
{{- $_ := set $section "private_key" "/etc/trust-fabric/peers/tls.key" }}
{{- else if eq $pki.mode "spire" }}
{{- $_ := set $section "certificate" "/run/trust-fabric/svid/svid.pem" }}
{{- $_ := set $section "private_key" "/run/trust-fabric/svid/svid-key.pem" }}
{{- if not $pki.peerCA }}{{ $ca = "/run/trust-fabric/svid/bundle.pem" }}{{ end }}
{{- else if not $pki.peerCA }}{{ $ca = "/etc/trust-fabric/pki/ca.pem" }}
{{- end }}
{{- $_ := set $section "listen" "0.0.0.0:8695" }}
{{- $_ := set $section "ca" $ca }}
{{- if $pki.peerCRL }}{{ $_ := set $section "crl" "/etc/trust-fabric/ca/peer-crl.pem" }}{{ end }}
{{- $members := list }}
{{- range $id := untilStep 1 ($replicas | add1 | int) 1 }}
{{- $pod := printf "%s-%d" $root.Release.Name $id }}
{{- $member := dict "id" $id "address" (printf "%s.%s-peers:8695" $pod $root.Release.Name) }}
{{- if eq $pki.mode "certManagerCsi" }}
{{- $_ := set $member "identity" (printf "spiffe://%s/ns/%s/pod/%s" $fabric.trustDomain $root.Release.Namespace $pod) }}
{{- end }}
{{- $members = append $members $member }}
{{- end }}
{{- $_ := set $section "members" $members }}
{{- end }}
{{- end }}
