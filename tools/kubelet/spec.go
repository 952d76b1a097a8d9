package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/util/taints"
)

// Spec is what differs between two machines; what is the same for all stands in the KubeletConfiguration.
// Every field must be there, and no other may be. Sizes are what the course says, not what this computer has.
type Spec struct {
	Name       string `json:"name"`        // of the Kubernetes node, and its host name
	Address    string `json:"address"`     // its InternalIP; the kubelet's HTTPS server listens on it
	ProviderID string `json:"provider_id"` // such as "course://cpu-a"

	Kubeconfig string `json:"kubeconfig"`
	TLSCert    string `json:"tls_cert"` // of the HTTPS server
	TLSKey     string `json:"tls_key"`
	ClientCA   string `json:"client_ca"` // signs the certificates of those who may call the HTTPS server

	Disk      string `json:"disk"`       // directory whose content is the machine's disk usage
	Root      string `json:"root"`       // below it: Pods' volumes, and what the kubelet remembers
	PodLogs   string `json:"pod_logs"`   // directory of the containers' logs
	CRISocket string `json:"cri_socket"` // path of the runtime's Unix socket

	CPU         int64             `json:"cpu"`
	MemoryBytes int64             `json:"memory_bytes"`
	DiskBytes   int64             `json:"disk_bytes"`
	Extended    map[string]int64  `json:"extended"` // such as {"nvidia.com/gpu": 4}
	GPUs        []gpu             `json:"gpus"`     // those of Extended, where they are real; else empty
	Labels      map[string]string `json:"labels"`   // beside those that every kubelet sets
	Taints      []string          `json:"taints"`   // such as "nvidia.com/gpu=present:NoSchedule"

	// Path of the machine's cgroup below each controller, or null where there is none; see usage.go.
	Cgroup *string `json:"cgroup"`
}

func readSpec(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spec, err := parseSpec(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

func parseSpec(data []byte) (*Spec, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	spec := &Spec{}
	if err := decoder.Decode(spec); err != nil {
		return nil, err
	}
	if missing, err := missingFields(data); err != nil || missing != nil {
		return nil, fmt.Errorf("fields are missing: %v", missing)
	}
	if spec.CPU < 1 || spec.MemoryBytes < 1 || spec.DiskBytes < 1 {
		return nil, fmt.Errorf("cpu, memory_bytes and disk_bytes must be positive, not %d, %d and %d",
			spec.CPU, spec.MemoryBytes, spec.DiskBytes)
	}
	_, err := spec.parsedTaints()
	return spec, err
}

// missingFields names the fields that are not in the JSON text: a zero value cannot tell a forgotten field.
func missingFields(data []byte) (missing []string, err error) {
	var there map[string]json.RawMessage
	if err := json.Unmarshal(data, &there); err != nil {
		return nil, err
	}
	fields := reflect.TypeFor[Spec]()
	for i := range fields.NumField() {
		name := fields.Field(i).Tag.Get("json")
		if _, ok := there[name]; !ok {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

func (s *Spec) parsedTaints() ([]v1.Taint, error) {
	parsed, removed, err := taints.ParseTaints(s.Taints)
	if err == nil && len(removed) > 0 {
		err = fmt.Errorf("a machine cannot begin without a taint: %v", removed)
	}
	return parsed, err
}
