{{- define "filmgate.selector" -}}
app.kubernetes.io/name: filmgate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "filmgate.labels" -}}
{{ include "filmgate.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.dedicatedTenant }}
filmgate/tenant: {{ . }}
{{- end }}
{{- end -}}

{{- define "filmgate.image" -}}
{{- $image := index .root.Values.image .kind -}}
{{- $built := eq .kind "worker" | ternary "cuda13.0-py313" "py313" -}}
{{ $image.repository }}:{{ $image.tag | default (printf "%s-%s" .root.Chart.AppVersion $built) }}
{{- end -}}

{{/* Every setting as a variable. `own` overrides `settings`. */}}
{{- define "filmgate.env" -}}
{{- $management := dict "host" .root.Values.api.listenAddress "port" .root.Values.managementPort -}}
{{- $all := mustMergeOverwrite (deepCopy .root.Values.settings) (.own | default dict) (dict "management" $management) -}}
{{- range $section, $values := $all }}
{{- range $name, $value := $values }}
- name: FILMGATE_{{ upper $section }}__{{ upper $name }}
  {{- if kindIs "float64" $value }}
  value: {{ if eq $value (floor $value) }}{{ printf "%.0f" $value | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}
- name: FILMGATE_DATA
  value: /data
{{- end -}}

{{- define "filmgate.envFrom" -}}
{{- with .Values.secretEnv }}
envFrom:
  {{- range . }}
  - secretRef: {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "filmgate.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "filmgate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "filmgate.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "filmgate.selector" . | nindent 8 }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "filmgate.selector" . | nindent 8 }}
{{- end -}}

{{- define "filmgate.tenantToleration" -}}
{{- with .tenant }}
- {key: filmgate/tenant, operator: Equal, value: {{ . | quote }}, effect: NoSchedule}
{{- end }}
{{- end -}}

{{/* The values of one worker: workerDefaults with its own on top. */}}
{{- define "filmgate.worker" -}}
{{- toYaml (mustMergeOverwrite (deepCopy .root.Values.workerDefaults) (deepCopy .own)) -}}
{{- end -}}

{{/* The grace period of the pods of a worker: its drain, and a minute for the upload. */}}
{{- define "filmgate.graceSeconds" -}}
{{- add (int .drainSeconds) 60 -}}
{{- end -}}

{{- define "filmgate.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 5
  failureThreshold: {{ .startupFailures }}
{{- end -}}

{{/* The models that KEDA may leave without a worker, comma-separated: the API accepts their jobs while none serves them.
A tenant with dedicated workers is not served by those of others. */}}
{{- define "filmgate.scaleFromZero" -}}
{{- $scaled := dict -}}
{{- $warm := dict -}}
{{- range .Values.workers -}}
{{- $worker := include "filmgate.worker" (dict "root" $ "own" .) | fromYaml -}}
{{- $lane := printf "%s %s" $worker.tenant $worker.modelName -}}
{{- $isScaled := and $.Values.keda.enabled $worker.scaling.enabled -}}
{{- if $isScaled -}}{{- $_ := set $scaled $lane $worker.modelName -}}{{- end -}}
{{- if and (gt (int $worker.minReplicas) 0) (not (and $isScaled $worker.scaling.zeroOutsideSchedule)) -}}
{{- $_ := set $warm $lane true -}}
{{- end -}}
{{- end -}}
{{- range keys $warm -}}{{- $_ := unset $scaled . -}}{{- end -}}
{{- values $scaled | uniq | sortAlpha | join "," -}}
{{- end -}}

{{/* The tenants with dedicated workers, as JSON. */}}
{{- define "filmgate.dedicatedTenants" -}}
{{- $tenants := list -}}
{{- range .Values.workers -}}
{{- $worker := include "filmgate.worker" (dict "root" $ "own" .) | fromYaml -}}
{{- with $worker.tenant -}}{{- $tenants = append $tenants . -}}{{- end -}}
{{- end -}}
{{- $tenants | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The component of a worker's ServiceAccount: dedicated workers have one for their tenant. */}}
{{- define "filmgate.workerAccount" -}}
{{- if .tenant }}worker-{{ .tenant }}{{ else }}worker{{ end -}}
{{- end -}}

{{/* "true" if the worker asks the metadata service for the spot notice: by its settings, or on a spot pool of Karpenter. */}}
{{- define "filmgate.asksMetadata" -}}
{{- $chosen := dig "worker" "interruption" (dig "worker" "interruption" "" .root.Values.settings) .worker.settings -}}
{{- $pool := dig .worker.nodePool (dict) .root.Values.karpenter.nodePools -}}
{{- $isSpot := and .root.Values.karpenter.enabled (has "spot" ($pool.capacity | default list)) -}}
{{- if or (eq $chosen "imds") (and $isSpot (eq .root.Values.karpenter.spotNotice "imds")) -}}true{{- end -}}
{{- end -}}

{{- define "filmgate.keyringMount" -}}
{{- if .Values.keyringClaim }}
- {name: keyring, mountPath: /keyring}
{{- end }}
{{- end -}}

{{- define "filmgate.keyringVolume" -}}
{{- with .Values.keyringClaim }}
- name: keyring
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end -}}

{{/* The labels of this release's metrics, as YAML: other releases in the same Prometheus may serve the same models. */}}
{{- define "filmgate.metricLabels" -}}
{{- .Values.monitoring.prometheusLabels | default (dict "namespace" .Release.Namespace) | toYaml -}}
{{- end -}}

{{/* Labels as matchers of PromQL. */}}
{{- define "filmgate.matchers" -}}
{{- $matchers := list -}}
{{- range $label := keys . | sortAlpha -}}
{{- $matchers = append $matchers (printf "%s=%q" $label (get $ $label)) -}}
{{- end -}}
{{- join "," $matchers -}}
{{- end -}}

{{/* The ports of the services that settings name by URL, and networkPolicy.extraPorts, as JSON. 443 has its own rule. */}}
{{- define "filmgate.outgoingPorts" -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.extraPorts -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- $all := list .Values.settings -}}
{{- range .Values.workers -}}
{{- $worker := include "filmgate.worker" (dict "root" $ "own" .) | fromYaml -}}
{{- $all = append $all $worker.settings -}}
{{- end -}}
{{- range $settings := $all -}}
{{- /* The other sections have URLs of commands, of readers, and of the metadata service, which has its own policy. */ -}}
{{- range $section := list "audit" "classifier" "models" "provider" "queue" "store" "traces" -}}
{{- range $value := get $settings $section | default dict -}}
{{- if and (kindIs "string" $value) (regexMatch "^https?://" $value) -}}
{{- $url := urlParse $value -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (eq $url.scheme "http" | ternary "80" "443") -}}
{{- $ports = append $ports (int $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- without ($ports | uniq) 443 | sortAlpha | toJson -}}
{{- end -}}
