{{/*
Refuses values that the schema cannot judge, each with a sentence that names the value. In every template that would fail with
such values, because Helm does not state the order of templates.
*/}}
{{- define "trust-fabric.validate" -}}
{{- $fabric := .Values.fabric }}
{{- $deploy := .Values.deploy }}
{{- if not (regexMatch "^[a-z]([a-z0-9-]{0,44}[a-z0-9])?$" .Release.Name) }}
{{- fail (printf "The release name %q cannot name a service: it must begin with a letter and have at most 46 of a-z, 0-9 and '-'." .Release.Name) }}
{{- end }}
{{- if not (has (include "trust-fabric.replicas" . | int) (list 1 3 5)) }}
{{- fail (printf "fabric.replicas is %v: a fabric has 1, 3 or 5 nodes, because an even number survives no more failures than the odd one below it." $fabric.replicas) }}
{{- end }}
{{- include "trust-fabric.validatePki" . }}
{{- range $index, $issuer := $fabric.issuers }}
{{- include "trust-fabric.validateIssuer" (dict "index" $index "issuer" $issuer) }}
{{- end }}
{{- range $name := list "transmitter" "federation" }}
{{- with get $fabric $name }}
{{- if ne (hasKey . "certificate") (hasKey . "privateKey") }}
{{- fail (printf "fabric.%s needs both certificate and privateKey, or neither." $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $index, $files := $deploy.files }}
{{- if eq (hasKey $files "configMapName") (hasKey $files "secretName") }}
{{- fail (printf "deploy.files[%d] needs exactly one of configMapName and secretName." $index) }}
{{- end }}
{{- end }}
{{- if and (include "trust-fabric.presentsToken" .) $deploy.networkPolicy.enabled (not $deploy.networkPolicy.apiServer) }}
{{- fail "An issuer has bearerTokenFile, so the nodes call the API server: deploy.networkPolicy.apiServer must name its networks and ports." }}
{{- end }}
{{- $type := $deploy.service.type | default "ClusterIP" }}
{{- if and $deploy.service.externalTrafficPolicy (eq $type "ClusterIP") }}
{{- fail "deploy.service.externalTrafficPolicy needs deploy.service.type NodePort or LoadBalancer." }}
{{- end }}
{{- if and $deploy.service.loadBalancerClass (ne $type "LoadBalancer") }}
{{- fail "deploy.service.loadBalancerClass needs deploy.service.type LoadBalancer." }}
{{- end }}
{{- include "trust-fabric.validateEgress" . }}
{{- include "trust-fabric.validateMonitoring" . }}
{{- if and $deploy.test (($deploy.test).exchange) (not $fabric.callers) }}
{{- fail "deploy.test.exchange needs a caller: fabric.callers must give the identity of its certificate the capability exchange." }}
{{- end }}
{{- $existing := lookup "v1" "ConfigMap" .Release.Namespace .Release.Name }}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace .Release.Name }}
{{- include "trust-fabric.unchanged" (dict "root" . "existing" $existing "set" $set) }}
{{- end }}

{{- define "trust-fabric.validatePki" -}}
{{- $pki := .Values.fabric.pki }}
{{- if and (eq $pki.mode "secrets") (not .Values.deploy.development) }}
{{- fail "fabric.pki.mode is secrets, by which every pod has the keys of all nodes: it is permitted with deploy.development: true only." }}
{{- end }}
{{- range $name, $mode := dict "issuerRef" "certManagerCsi" "className" "spire" "secretName" "secrets" }}
{{- if and (eq $pki.mode $mode) (not (get $pki $name)) }}
{{- fail (printf "fabric.pki.mode is %s, which needs fabric.pki.%s." $mode $name) }}
{{- end }}
{{- if and (ne $pki.mode $mode) (hasKey $pki $name) }}
{{- fail (printf "fabric.pki.%s is for mode %s, and fabric.pki.mode is %s." $name $mode $pki.mode) }}
{{- end }}
{{- end }}
{{- if and (hasKey $pki "peerIssuerRef") (ne $pki.mode "certManagerCsi") }}
{{- fail (printf "fabric.pki.peerIssuerRef is for mode certManagerCsi, and fabric.pki.mode is %s." $pki.mode) }}
{{- end }}
{{- if and (eq $pki.mode "certManagerCsi") (not $pki.clientCA) }}
{{- fail "fabric.pki.mode is certManagerCsi, which needs fabric.pki.clientCA, the CAs of callers." }}
{{- end }}
{{- if and (eq $pki.mode "certManagerCsi") (not $pki.peerCA) (gt (include "trust-fabric.replicas" . | int) 1) }}
{{- fail "fabric.pki.mode is certManagerCsi, which needs fabric.pki.peerCA for several nodes." }}
{{- end }}
{{- if and (eq $pki.mode "spire") (not .Values.deploy.spiffeHelper) }}
{{- fail "fabric.pki.mode is spire, which needs deploy.spiffeHelper.image: the sidecar writes the SVID into files." }}
{{- end }}
{{- end }}

{{- define "trust-fabric.validateIssuer" -}}
{{- $issuer := .issuer }}
{{- $place := printf "fabric.issuers[%d]" .index }}
{{- $sources := list }}
{{- range $name := list "keysFile" "keysUrl" "discovery" "bundleFile" "bundleEndpoint" }}
{{- if get $issuer $name }}{{ $sources = append $sources $name }}{{ end }}
{{- end }}
{{- if ne (len $sources) 1 }}
{{- fail (printf "%s has %d sources of keys and needs exactly one of keysFile, keysUrl, discovery, bundleFile and bundleEndpoint." $place (len $sources)) }}
{{- end }}
{{- $isSpiffe := eq ($issuer.kind | default "jwt") "spiffe" }}
{{- if ne $isSpiffe (hasPrefix "bundle" (first $sources)) }}
{{- fail (printf "%s.%s does not fit its kind: bundleFile and bundleEndpoint are for kind spiffe, the other sources for kind jwt." $place (first $sources)) }}
{{- end }}
{{- if eq $isSpiffe (hasKey $issuer "subject") }}
{{- fail (printf "%s.subject must be set for kind jwt, and must not be set for kind spiffe." $place) }}
{{- end }}
{{- end }}

{{/* Refuses settings by which the nodes call others, unless the NetworkPolicy states their networks or that there are none. */}}
{{- define "trust-fabric.validateEgress" -}}
{{- $fabric := .Values.fabric }}
{{- $calls := list }}
{{- range $name, $rows := dict "issuers" $fabric.issuers "signals" $fabric.signals "federation.peers" ($fabric.federation).peers }}
{{- range $index, $row := $rows }}
{{- if and (or $row.discovery $row.keysUrl $row.bundleEndpoint $row.endpoints) (not $row.bearerTokenFile) }}
{{- $calls = append $calls (printf "fabric.%s[%d]" $name $index) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $fabric.transmitter }}{{ $calls = append $calls "fabric.transmitter" }}{{ end }}
{{- $policy := .Values.deploy.networkPolicy }}
{{- if and $calls $policy.enabled (not (hasKey $policy "egress")) }}
{{- fail (printf "The nodes call other hosts for %s: deploy.networkPolicy.egress must name their networks and ports, or be [] if there are none." (join ", " $calls)) }}
{{- end }}
{{- end }}

{{- define "trust-fabric.validateMonitoring" -}}
{{- $monitor := .Values.deploy.serviceMonitor }}
{{- if $monitor.enabled }}
{{- $access := ((.Values.fabric.metrics).access) | default "loopback" }}
{{- if eq $access "loopback" }}
{{- fail "deploy.serviceMonitor.enabled needs fabric.metrics.access: authenticated, because Prometheus does not scrape from the loopback address of a pod." }}
{{- end }}
{{- if not $monitor.ca }}
{{- fail "deploy.serviceMonitor needs ca, the CA of the certificates of the nodes." }}
{{- end }}
{{- if and (eq $access "authenticated") (not $monitor.certificateSecret) }}
{{- fail "deploy.serviceMonitor needs certificateSecret, because fabric.metrics.access is authenticated." }}
{{- end }}
{{- end }}
{{- end }}

{{/* Bytes of a quantity, which the API server may write in another unit than the values. */}}
{{- define "trust-fabric.bytes" -}}
{{- $decimal := dict "m" 1e-3 "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 }}
{{- $binary := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- mulf $number (get (merge $decimal $binary) (trimPrefix $number .)) }}
{{- end }}

{{/*
Refuses a changed name, size or volume of a fabric that exists:
(dict "root" . "existing" <its ConfigMap or nothing> "set" <its StatefulSet or nothing>).
*/}}
{{- define "trust-fabric.unchanged" -}}
{{- with (.existing).data }}
{{- $old := fromToml (get . "trust-fabric.toml") }}
{{- $fabric := $.root.Values.fabric }}
{{- if ne $old.fabric.issuer $fabric.issuer }}
{{- fail (printf "fabric.issuer is %s and the installed fabric has %s: it is iss of every token and cannot change." $fabric.issuer $old.fabric.issuer) }}
{{- end }}
{{- if ne $old.fabric.trust_domain $fabric.trustDomain }}
{{- fail (printf "fabric.trustDomain is %s and the installed fabric has %s: it is part of every name and cannot change." $fabric.trustDomain $old.fabric.trust_domain) }}
{{- end }}
{{- $members := $old.cluster.members | default list }}
{{- $size := max 1 (len $members) | int }}
{{- $replicas := include "trust-fabric.replicas" $.root | int }}
{{- if ne $size $replicas }}
{{- fail (printf "fabric.replicas is %d and the installed fabric has %d: nodes join and leave by trust-fabric cluster, not by this number." $replicas $size) }}
{{- end }}
{{- $mode := $fabric.pki.mode }}
{{- if and $members (ne (hasKey (first $members) "identity") (eq $mode "certManagerCsi")) }}
{{- fail (printf "fabric.pki.mode is %s: between certManagerCsi and another mode the names of the nodes in their certificates change, which the nodes of the installed fabric refuse. It takes a new release, restored from a backup." $mode) }}
{{- end }}
{{- end }}
{{- $storage := .root.Values.fabric.storage }}
{{- range ((.set).spec).volumeClaimTemplates }}
{{- $size := .spec.resources.requests.storage }}
{{- if ne (include "trust-fabric.bytes" $size) (include "trust-fabric.bytes" $storage.size) }}
{{- fail (printf "fabric.storage.size is %s and the StatefulSet has %s: Kubernetes does not change it. The volumes and the StatefulSet are changed by hand: docs/guide/kubernetes-chart.md, \"Larger volumes\"." $storage.size $size) }}
{{- end }}
{{- if ne (.spec.storageClassName | default "") ($storage.storageClassName | default "") }}
{{- fail (printf "fabric.storage.storageClassName is %q and the StatefulSet has %q: Kubernetes does not change it, and a volume keeps its class." ($storage.storageClassName | default "") (.spec.storageClassName | default "")) }}
{{- end }}
{{- end }}
{{- end }}
