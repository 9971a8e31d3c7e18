{{/* The stem of every name. */}}
{{- define "neuron-plugin.name" -}}
{{ .Values.fullnameOverride | default .Chart.Name }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "neuron-plugin.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* How pods find node and set: gates, extender, second-scheduler or none. */}}
{{- define "neuron-plugin.placement" -}}
{{- if .Values.placement }}{{ .Values.placement }}
{{- else if not .Values.scheduler.enabled }}gates
{{- else if .Values.scheduler.customScheduler.enabled }}second-scheduler
{{- else }}extender
{{- end }}
{{- end }}

{{/* Whether the extender runs, which is the placement controller, too; empty for no, as of the next two. */}}
{{- define "neuron-plugin.runsExtender" -}}
{{ if ne (include "neuron-plugin.placement" .) "none" }}true{{ end }}
{{- end }}

{{- define "neuron-plugin.runsSecondScheduler" -}}
{{ if eq (include "neuron-plugin.placement" .) "second-scheduler" }}true{{ end }}
{{- end }}

{{- define "neuron-plugin.configuresDefaultScheduler" -}}
{{ if or (eq .Values.placement "extender") (and (include "neuron-plugin.runsExtender" .) .Values.scheduler.defaultScheduler.enabled) }}true{{ end }}
{{- end }}

{{/* Who gives new pods the gate: policy or webhook; empty where nothing does. */}}
{{- define "neuron-plugin.admission" -}}
{{- if ne (include "neuron-plugin.placement" .) "gates" }}
{{- else if ne .Values.gates.admission "auto" }}{{ .Values.gates.admission }}
{{- else }}{{ ternary "policy" "webhook" (eq (include "neuron-plugin.mutates" .) "true") }}
{{- end }}
{{- end }}

{{/* Whether the cluster serves MutatingAdmissionPolicy; empty for no. It names the kinds that it serves; where none is asked, there is its version only. */}}
{{- define "neuron-plugin.mutates" -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" }}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}true{{ end }}
{{- else if not (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* How nodes offer their devices, as a JSON list: a DaemonSet for each. */}}
{{- define "neuron-plugin.modes" -}}
{{- if ne .Values.devicePlugin.mode "dra" }}["device-plugin"]
{{- else if .Values.devicePlugin.dra.nodeSelector }}["device-plugin", "dra"]
{{- else }}["dra"]
{{- end }}
{{- end }}

{{/* Whether the placement controller allocates claims; empty for no. */}}
{{- define "neuron-plugin.placesClaims" -}}
{{ if and (eq (include "neuron-plugin.placement" .) "gates") (eq .Values.devicePlugin.mode "dra") .Values.gates.claims }}true{{ end }}
{{- end }}

{{/* What selects a component's pods; it never changes, so it holds no version. */}}
{{- define "neuron-plugin.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* What selects the pods of all DaemonSets. */}}
{{- define "neuron-plugin.selectorOfNodes" -}}
matchLabels:
  {{- include "neuron-plugin.selector" . | nindent 2 }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: [device-plugin, dra-driver]
{{- end }}

{{- define "neuron-plugin.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "neuron-plugin.serverSecret" -}}
{{ .Values.certificates.serverSecret | default (printf "%s-extender-tls" (include "neuron-plugin.name" .)) }}
{{- end }}

{{- define "neuron-plugin.clientSecret" -}}
{{ .Values.certificates.clientSecret | default (printf "%s-scheduler-tls" (include "neuron-plugin.name" .)) }}
{{- end }}

{{/* The extender's name in its certificate. */}}
{{- define "neuron-plugin.extenderHost" -}}
{{ include "neuron-plugin.name" . }}-extender.{{ .Release.Namespace }}.svc
{{- end }}

{{/* What the device plugin may do beyond being root, as a JSON list. */}}
{{- define "neuron-plugin.capabilities" -}}
{{- $asked := list }}
{{- /* The one to follow a descriptor of another user's process, the other to list them. */}}
{{- if .Values.devicePlugin.watchProcesses }}{{ $asked = list "SYS_PTRACE" "DAC_READ_SEARCH" }}{{ end }}
{{- if .Values.devicePlugin.kernelLog }}{{ $asked = append $asked "SYSLOG" }}{{ end }}
{{- toJson $asked }}
{{- end }}

{{/* The resources that pods ask for Neuron by, as a CEL list. */}}
{{- define "neuron-plugin.resources" -}}
['aws.amazon.com/neuron', 'aws.amazon.com/neurondevice', 'aws.amazon.com/neuroncore']
{{- end }}

{{/* Whether a container of the pod names one of them, be it with the quantity 0, in CEL. */}}
{{- define "neuron-plugin.asksForNeuron" -}}
(object.spec.?initContainers.orValue([]) + object.spec.containers).exists(container, {{ include "neuron-plugin.resources" . }}.exists(name, name in container.?resources.?limits.orValue({})))
{{- end }}

{{/* Whether a container of a pod, such as "object", asks for more than none of them, in CEL. */}}
{{- define "neuron-plugin.asksForSomeNeuron" -}}
({{ . }}.spec.?initContainers.orValue([]) + {{ . }}.spec.containers).exists(container, {{ include "neuron-plugin.resources" . }}.exists(name, name in container.?resources.?limits.orValue({}) && quantity(string(container.resources.limits[name])).isGreaterThan(quantity('0'))))
{{- end }}

{{/* Whether a pod, such as "object", may ask for Neuron so that the placement controller places it, in CEL. */}}
{{- define "neuron-plugin.mayBePlaced" -}}
{{ include "neuron-plugin.asksForSomeNeuron" .pod }}{{ if include "neuron-plugin.placesClaims" .root }} || {{ .pod }}.spec.?resourceClaims.orValue([]).size() > 0{{ end }}
{{- end }}

{{/* Which new pods get the gate: conditions of a policy or a webhook. */}}
{{- define "neuron-plugin.gateConditions" -}}
- name: asks-for-neuron
  expression: >-
    {{ include "neuron-plugin.mayBePlaced" (dict "pod" "object" "root" .) }}
# The second scheduler of this chart does not run: its pods go to the default one.
- name: by-the-default-scheduler
  expression: object.spec.?schedulerName.orValue('default-scheduler') in ['default-scheduler', '{{ .Values.scheduler.customScheduler.schedulerName }}']
# Nothing schedules a pod that names its node, such as the mirror of a static pod.
- name: to-be-scheduled
  expression: object.spec.?nodeName.orValue('') == ''
# Its node is chosen already, by affinity.
- name: not-of-a-daemonset
  expression: >-
    !object.metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == 'DaemonSet' && owner.?controller.orValue(false))
{{- end }}

{{/* The keys of an assignment on a pod, as a CEL list. */}}
{{- define "neuron-plugin.assignmentKeys" -}}
{{- $keys := list "NEURON_DEVS" "NEURON_CORES" "NEURON_ALLOC_TIME" "NEURON_ALLOCATED" "AWS_NEURON_IDS" "NEURON_RESOURCE_TYPE" }}
{{- /* A pod that is not bound says for which node its assignment is, and for which pod; or that it was released without one. */}}
{{- if eq (include "neuron-plugin.placement" .) "gates" }}{{ $keys = concat $keys (list "neuron-plugin.io/node" "neuron-plugin.io/pod-uid" "neuron-plugin.io/domain" "neuron-plugin.io/ultraserver" "neuron-plugin.io/released") }}{{ end -}}
['{{ join "', '" $keys }}']
{{- end }}

{{/* Whether a new pod, a copy of one that was placed, says what only the placement controller and the plugin may say, in CEL.
The pods of groups' checks say it from the start: they name their node. */}}
{{- define "neuron-plugin.isCopy" -}}
{{- $says := printf "%s.exists(key, key in object.metadata.?annotations.orValue({})) || 'neuron-plugin.io/node' in object.metadata.?labels.orValue({})" (include "neuron-plugin.assignmentKeys" .) -}}
{{- if .Values.preflight.enabled -}}
request.userInfo.username != 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "neuron-plugin.name" . }}-extender' && ({{ $says }})
{{- else -}}
{{ $says }}
{{- end -}}
{{- end }}

{{/* The labels under the vendor's prefix that the plugin describes its node with, as a CEL list. */}}
{{- define "neuron-plugin.vendorLabels" -}}
['neuron.amazonaws.com/present', 'neuron.amazonaws.com/ultraserver-mode', 'neuron.amazonaws.com/ultraserver-server-id-2', 'neuron.amazonaws.com/ultraserver-node-id-2', 'neuron.amazonaws.com/ultraserver-server-id-4', 'neuron.amazonaws.com/ultraserver-node-id-4']
{{- end }}

{{/* The node conditions that the device plugin keeps, as a JSON list, which is one of CEL, too. */}}
{{- define "neuron-plugin.nodeConditions" -}}
{{- $settings := .Values.devicePlugin.settings }}
{{- toJson (compact (list (index $settings "node-condition") (index $settings "ready-condition"))) }}
{{- end }}

{{/* The node named in the token of a request, in CEL; empty for a token without one. */}}
{{- define "neuron-plugin.callersNode" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
{{- end }}

{{/* The extender in a KubeSchedulerConfiguration. Takes the directory of the client certificate as .certificateDir. */}}
{{- define "neuron-plugin.schedulerExtender" -}}
{{- $address := .root.Values.scheduler.extender.service.clusterIP | default (include "neuron-plugin.extenderHost" .root) }}
- urlPrefix: https://{{ contains ":" $address | ternary (printf "[%s]" $address) $address }}:12345
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: {{ .root.Values.scheduler.extenderConfig.weight }}
  httpTimeout: {{ .root.Values.scheduler.extenderConfig.httpTimeout }}
  enableHTTPS: true
  tlsConfig:
    serverName: {{ include "neuron-plugin.extenderHost" .root }}
    caFile: {{ .certificateDir }}/ca.crt
    certFile: {{ .certificateDir }}/tls.crt
    keyFile: {{ .certificateDir }}/tls.key
  nodeCacheCapable: true
  ignorable: false
  managedResources:
    - name: aws.amazon.com/neuron
      ignoredByScheduler: false
    - name: aws.amazon.com/neurondevice
      ignoredByScheduler: false
    - name: aws.amazon.com/neuroncore
      ignoredByScheduler: false
    - name: neuron-plugin.io/memory
      ignoredByScheduler: true
{{- end }}

{{/* Which nodes a DaemonSet leaves out, whatever chooses its nodes. Takes .root and .mode. */}}
{{- define "neuron-plugin.notOnNodes" -}}
- key: eks.amazonaws.com/compute-type
  operator: NotIn
  values: {{ toJson .root.Values.devicePlugin.nodeAffinity.excludedComputeTypes }}
{{- if and (eq .mode "device-plugin") (eq .root.Values.devicePlugin.mode "dra") }}
{{- range $label, $value := .root.Values.devicePlugin.dra.nodeSelector }}
- key: {{ quote $label }}
  operator: NotIn
  values: [{{ quote $value }}]
{{- end }}
{{- end }}
{{- end }}

{{/* Where the plugin finds the host in its container; the doctor looks from there, too. Takes the chart's context as .root and
one of its modes as .mode. */}}
{{- define "neuron-plugin.hostMounts" -}}
- name: config
  mountPath: /etc/neuron-plugin
  readOnly: true
- name: device-plugins
  mountPath: {{ .root.Values.devicePlugin.kubeletDir }}/device-plugins
- name: pod-resources
  mountPath: {{ .root.Values.devicePlugin.kubeletDir }}/pod-resources
  readOnly: true
# To see when no process of an ended pod lives any more.
- name: cgroup
  mountPath: /host/cgroup
  readOnly: true
# To see which device nodes exist; none is opened.
- name: dev
  mountPath: /dev
  readOnly: true
# The host's choice of logical cores: neuron/logical_nc_config.
- name: opt-aws
  mountPath: /opt/aws
  readOnly: true
{{- if or .root.Values.devicePlugin.settings.cdi (eq .mode "dra") }}
- name: cdi
  mountPath: /var/run/cdi
{{- end }}
{{- if or (eq (.root.Values.devicePlugin.settings.registration | default "socket") "watcher") (eq .mode "dra") }}
- name: plugins-registry
  mountPath: {{ .root.Values.devicePlugin.kubeletDir }}/plugins_registry
{{- end }}
{{- if eq .root.Values.devicePlugin.mode "dra" }}
# Which pod has which claim prepared: dra_manager_state, a new file at each change. What is unmounted on the host has to be
# unmounted here, too.
- name: kubelet
  mountPath: /host/kubelet
  readOnly: true
  mountPropagation: HostToContainer
{{- range .root.Values.devicePlugin.dra.hidden }}
- name: hidden
  mountPath: /host/kubelet/{{ . }}
  readOnly: true
{{- end }}
{{- end }}
{{- if .root.Values.devicePlugin.watchProcesses }}
- name: proc
  mountPath: /host/proc
  readOnly: true
{{- end }}
{{- if .root.Values.devicePlugin.stateDir }}
- name: state
  mountPath: /var/lib/neuron-plugin
{{- end }}
{{- with .root.Values.devicePlugin.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What is mounted there. */}}
{{- define "neuron-plugin.hostVolumes" -}}
- name: config
  configMap:
    name: {{ include "neuron-plugin.name" .root }}
- name: device-plugins
  hostPath:
    path: {{ .root.Values.devicePlugin.kubeletDir }}/device-plugins
    type: Directory
- name: pod-resources
  hostPath:
    path: {{ .root.Values.devicePlugin.kubeletDir }}/pod-resources
    type: Directory
- name: cgroup
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
- name: dev
  hostPath:
    path: /dev
    type: Directory
- name: opt-aws
  hostPath:
    path: /opt/aws
{{- if or .root.Values.devicePlugin.settings.cdi (eq .mode "dra") }}
- name: cdi
  hostPath:
    path: /var/run/cdi
    type: DirectoryOrCreate
{{- end }}
{{- if or (eq (.root.Values.devicePlugin.settings.registration | default "socket") "watcher") (eq .mode "dra") }}
- name: plugins-registry
  hostPath:
    path: {{ .root.Values.devicePlugin.kubeletDir }}/plugins_registry
    type: Directory
{{- end }}
{{- if eq .root.Values.devicePlugin.mode "dra" }}
- name: kubelet
  hostPath:
    path: {{ .root.Values.devicePlugin.kubeletDir }}
    type: Directory
{{- if .root.Values.devicePlugin.dra.hidden }}
# Nothing, in place of what the plugin has no business with.
- name: hidden
  emptyDir: {}
{{- end }}
{{- end }}
{{- if .root.Values.devicePlugin.watchProcesses }}
- name: proc
  hostPath:
    path: /proc
    type: Directory
{{- end }}
{{- with .root.Values.devicePlugin.stateDir }}
- name: state
  hostPath:
    path: {{ . }}
    type: DirectoryOrCreate
{{- end }}
{{- with .root.Values.devicePlugin.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
