{{/* Names and labels. Whole values are quoted: YAML takes 123 and 7e10 for numbers. */}}
{{- define "pg.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters: pods' names and those of Services of brokers are longer. */}}
{{- define "pg.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "pg.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "pg.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "pg.selector" -}}
app.kubernetes.io/name: {{ include "pg.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "pg.testSelector" -}}
app.kubernetes.io/name: {{ printf "%s-test" (include "pg.name" .) | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "pg.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "pg.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: gateway
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pg.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "pg.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "pg.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pg.domain" -}}
{{ .Release.Namespace }}.svc
{{- end }}

{{- define "pg.bootstrapHost" -}}
{{- .Values.listener.advertisedHost | default (printf "%s.%s" (include "pg.fullname" .) (include "pg.domain" .)) }}
{{- end }}

{{- define "pg.brokerHostPattern" -}}
{{- .Values.listener.advertisedBrokerHostPattern | default (printf "%s-broker-$(node_id).%s" (include "pg.fullname" .) (include "pg.domain" .)) }}
{{- end }}

{{/* The port that clients of the bootstrap Service use. */}}
{{- define "pg.bootstrapPort" -}}
{{- if eq .Values.listener.mode "perBrokerServices" }}
{{- .Values.listener.perBrokerServicePort }}
{{- else }}
{{- .Values.listener.advertisedPort | default .Values.listener.port }}
{{- end }}
{{- end }}

{{/* Seconds until Kubernetes kills. */}}
{{- define "pg.grace" -}}
{{- add .Values.shutdownDelaySeconds .Values.drainTimeoutSeconds 10 }}
{{- end }}

{{/* Bytes of a size in Kubernetes' or the configuration's words; 0: none of them. */}}
{{- define "pg.bytes" -}}
{{- if kindIs "string" . }}
{{- $factors := dict "" 1 "k" 1000 "K" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- $factor := get $factors (regexFind "[A-Za-z]*$" . | trimSuffix "B") | default 0 }}
{{- mulf (regexFind "^[0-9.]+([eE][0-9]+)?" (trim .) | float64) (float64 $factor) }}
{{- else }}
{{- float64 . }}
{{- end }}
{{- end }}

{{/* The same as it was written; Helm has numbers as floats. */}}
{{- define "pg.size" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ int64 . }}{{ end }}
{{- end }}

{{/* What can't be told by a schema: which values need which. */}}
{{- define "pg.check" -}}
{{- if not .Values.existingConfigSecret }}
{{- if not .Values.upstream.bootstrapServers }}
{{- fail "upstream.bootstrapServers is required: host:port,host:port of the cluster behind the gateways" }}
{{- end }}
{{- if not (or .Values.admin.existingSecret .Values.admin.open) }}
{{- fail "admin.existingSecret is required: a Secret with the key token, which `kubectl create secret generic NAME --from-literal=token=$(openssl rand -hex 32)` makes; or admin.open: true, if every client that reaches the port may change policies" }}
{{- end }}
{{- range $key := list "upstream" "listener" "listeners" "admin" "health" "workers" "shutdown_delay" "drain_timeout" }}
{{- if hasKey $.Values.config $key }}
{{- fail (printf "config.%s is made of other values: see upstream, listener, tls, admin, health, workers, shutdownDelaySeconds and drainTimeoutSeconds in values.yaml" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key, $value := dict "ssl.client.auth" "admin.clientAuth" "ssl.truststore.location" "admin.clientCaSecret" }}
{{- if hasKey $.Values.admin.extra $key }}
{{- fail (printf "admin.extra has %s, which is made of %s: commands in the pods depend on it" $key $value) }}
{{- end }}
{{- end }}
{{- if ne .Values.admin.clientAuth "none" }}
{{- if not (and .Values.admin.tlsSecret .Values.admin.clientCaSecret) }}
{{- fail "admin.clientAuth needs admin.tlsSecret, and admin.clientCaSecret: a Secret with ca.crt, the CAs of clients' certificates" }}
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (eq .Values.admin.clientAuth "required") (not .Values.serviceMonitor.tlsConfig.cert) }}
{{- fail "admin.clientAuth required: Prometheus needs a certificate as well: write serviceMonitor.tlsConfig.cert and keySecret" }}
{{- end }}
{{- if eq .Values.listener.mode "sni" }}
{{- if not .Values.tls.existingSecret }}
{{- fail "listener.mode sni needs TLS, whose handshake has the server name: set tls.existingSecret" }}
{{- end }}
{{- if not (and .Values.listener.advertisedHost .Values.listener.advertisedBrokerHostPattern) }}
{{- fail "listener.mode sni needs listener.advertisedHost and listener.advertisedBrokerHostPattern, such as kafka.example and broker-$(node_id).kafka.example" }}
{{- end }}
{{- end }}
{{- if eq .Values.service.type "NodePort" }}
{{- if eq .Values.listener.mode "perBrokerServices" }}
{{- fail "service.type NodePort gives each of the Services of listener.mode perBrokerServices another port of the nodes, and clients are told one for all: choose mode ports or sni" }}
{{- end }}
{{- if not .Values.listener.advertisedPort }}
{{- fail "service.type NodePort needs listener.advertisedPort, such as 30092: the nodes' port of the bootstrap, which clients are told" }}
{{- end }}
{{- end }}
{{- $written := printf "%s\n%s" (toYaml .Values.config) (toYaml .Values.admin.extra) }}
{{- if or (regexMatch "(?m)^[ -]*[\\w.]*(password|secret|key[.]pem): \\S" $written) (hasKey .Values.upstream.properties "ssl.key.pem") }}
{{- fail "a password or key in clear: this becomes a ConfigMap, so write {file: PATH}, and mount the Secret by upstream.existingSecret or extraVolumes" }}
{{- end }}
{{- range .Values.admin.extra.tokens }}
{{- if and (kindIs "string" .) (not (contains ":" .)) }}
{{- fail "admin.extra.tokens has a token in clear, and becomes a ConfigMap: put it into admin.existingSecret" }}
{{- end }}
{{- end }}
{{- /* Another variable, which may be of a Secret; a file; hashes of tokens. */}}
{{- $hash := "[^:,]+:[a-z]+:sha256:[0-9a-f]+" }}
{{- $notClear := printf "^([$][(][^)]+[)]|\\[?[{][\"']?file[\"']?:.*[}]\\]?|%s(,%s)*)$" $hash $hash }}
{{- range .Values.extraEnv }}
{{- if and .value (regexMatch "^PRODUCE_GATEWAY_.*(PASSWORD|SECRET|KEY_PEM|TOKENS)$" .name) (not (regexMatch $notClear (toString .value))) }}
{{- fail (printf "extraEnv has %s in clear, and becomes part of the StatefulSet: write valueFrom.secretKeyRef" .name) }}
{{- end }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "autoscaling.minReplicas: %d is more than autoscaling.maxReplicas, %d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- if and .Values.config.gateway_id (or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1)) }}
{{- fail "config.gateway_id would be the same for all gateways, and each needs its own: leave it out, and it is the pod's name" }}
{{- end }}
{{- range $key, $_ := include "pg.labels" . | fromYaml }}
{{- if hasKey $.Values.podLabels $key }}
{{- fail (printf "podLabels has %s, which is a label of the chart's own: Services and the StatefulSet find pods by such" $key) }}
{{- end }}
{{- end }}
{{- include "pg.checkPorts" . }}
{{- if ne .Values.tls.clientAuth "none" }}
{{- if not (and .Values.tls.existingSecret .Values.tls.clientCaSecret) }}
{{- fail "tls.clientAuth needs tls.existingSecret, without which the listener is plain TCP, and tls.clientCaSecret: a Secret with ca.crt, the CAs of clients' certificates" }}
{{- end }}
{{- end }}
{{- range $section := list "tls" "admin" }}
{{- with get $.Values $section }}
{{- if and .clientCaSecret (eq .clientAuth "none") }}
{{- fail (printf "%s.clientCaSecret: clients are asked for no certificate: write %s.clientAuth: required, or requested, or leave it out" $section $section) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Each port of a pod is there once, and is one. */}}
{{- define "pg.checkPorts" -}}
{{- $own := .Values.listener }}
{{- $taken := dict }}
{{- $ports := list (list "listener.port" $own.port) (list "admin.port" .Values.admin.port) (list "health.port" .Values.health.port) }}
{{- if ne $own.mode "sni" }}
{{- range $own.brokerIds }}
{{- $ports = append $ports (list (printf "listener.brokerIds: broker %d" (int .)) (add $own.port 1 .)) }}
{{- end }}
{{- end }}
{{- $shift := ternary (sub (int $own.advertisedPort) (int $own.port)) 0 (and (eq $own.mode "ports") (not (empty $own.advertisedPort))) }}
{{- range $each := $ports }}
{{- $port := last $each | int }}
{{- if gt (add $port (max 0 $shift)) 65535 }}
{{- fail (printf "%s would have port %d, beyond 65535: choose a lower listener.port" (first $each) (add $port (max 0 $shift))) }}
{{- end }}
{{- with get $taken (toString $port) }}
{{- fail (printf "%s and %s: both would be port %d of a pod" . (first $each) $port) }}
{{- end }}
{{- $_ := set $taken (toString $port) (first $each) }}
{{- end }}
{{- end }}

{{/* The listener's section of gateway.yaml. */}}
{{- define "pg.listener" -}}
{{- $own := .Values.listener }}
{{- $made := dict "host" "0.0.0.0" "port" (int $own.port) }}
{{- if eq $own.mode "sni" }}
{{- $port := ternary (printf ":%d" (int $own.advertisedPort)) "" (not (empty $own.advertisedPort)) }}
{{- $_ := set $made "sni" (dict "bootstrap_address" (printf "%s%s" $own.advertisedHost $port) "advertised_broker_address_pattern" (printf "%s%s" $own.advertisedBrokerHostPattern $port)) }}
{{- else }}
{{- $_ := set $made "advertised_host" (include "pg.bootstrapHost" .) }}
{{- end }}
{{- if and (eq $own.mode "ports") $own.advertisedPort }}
{{- $_ := set $made "advertised_port" (int $own.advertisedPort) }}
{{- end }}
{{- if eq $own.mode "perBrokerServices" }}
{{- $_ := set $made "advertised_port" (int $own.perBrokerServicePort) }}
{{- $_ := set $made "advertised_broker_host_pattern" (include "pg.brokerHostPattern" .) }}
{{- $brokers := dict }}
{{- range $own.brokerIds }}
{{- $_ := set $brokers (toString (int .)) (dict "advertised_port" (int $own.perBrokerServicePort)) }}
{{- end }}
{{- $_ := set $made "brokers" $brokers }}
{{- end }}
{{- if .Values.tls.existingSecret }}
{{- $_ := set $made "ssl.keystore.location" "/etc/produce-gateway/tls/tls.crt" }}
{{- $_ := set $made "ssl.key.location" "/etc/produce-gateway/tls/tls.key" }}
{{- if ne .Values.tls.clientAuth "none" }}
{{- $_ := set $made "ssl.client.auth" .Values.tls.clientAuth }}
{{- $_ := set $made "ssl.truststore.location" "/etc/produce-gateway/clients-ca/ca.crt" }}
{{- end }}
{{- end }}
{{- with $own.proxyProtocolFrom }}
{{- $_ := set $made "proxy_protocol" (dict "from" .) }}
{{- end }}
{{- toYaml $made }}
{{- end }}

{{- define "pg.admin" -}}
{{- $name := printf "%s-admin" (include "pg.fullname" .) }}
{{- $domain := include "pg.domain" . }}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s" $name $domain) (printf "%s.%s.cluster.local" $name $domain) }}
{{- $made := dict "host" "0.0.0.0" "port" (int .Values.admin.port) "hosts" (concat $hosts .Values.admin.hosts) }}
{{- if .Values.admin.existingSecret }}
{{- $_ := set $made "token_file" "/etc/produce-gateway/admin/token" }}
{{- end }}
{{- if .Values.admin.tlsSecret }}
{{- $_ := set $made "ssl.keystore.location" "/etc/produce-gateway/admin-tls/tls.crt" }}
{{- $_ := set $made "ssl.key.location" "/etc/produce-gateway/admin-tls/tls.key" }}
{{- end }}
{{- if ne .Values.admin.clientAuth "none" }}
{{- $_ := set $made "ssl.client.auth" .Values.admin.clientAuth }}
{{- $_ := set $made "ssl.truststore.location" "/etc/produce-gateway/admin-clients-ca/ca.crt" }}
{{- end }}
{{- if .Values.admin.open }}
{{- $_ := set $made "open" true }}
{{- end }}
{{- range $key, $_ := $made }}
{{- if hasKey $.Values.admin.extra $key }}
{{- fail (printf "admin.extra.%s is made of other values: see admin in values.yaml" $key) }}
{{- end }}
{{- end }}
{{- toYaml (merge $made .Values.admin.extra) }}
{{- end }}

{{/* Options of commands in a pod: the certificate of the admin server as one's own, where one is required. */}}
{{- define "pg.ownCertificate" -}}
{{- if eq .Values.admin.clientAuth "required" -}}
--cert=/etc/produce-gateway/admin-tls/tls.crt --key=/etc/produce-gateway/admin-tls/tls.key
{{- end }}
{{- end }}

{{/* gateway.yaml. */}}
{{- define "pg.config" -}}
upstream:
  bootstrap_servers: {{ .Values.upstream.bootstrapServers | quote }}
  {{- with .Values.upstream.properties }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
listener:
  {{- include "pg.listener" . | nindent 2 }}
admin:
  {{- include "pg.admin" . | nindent 2 }}
health:
  host: 0.0.0.0
  port: {{ .Values.health.port }}
workers: {{ .Values.workers }}
shutdown_delay: {{ int .Values.shutdownDelaySeconds }}
drain_timeout: {{ int .Values.drainTimeoutSeconds }}
{{- with .Values.config }}
{{ toYaml . }}
{{- end }}
{{- end }}
