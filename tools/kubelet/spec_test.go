package main

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

func fields(t *testing.T) map[string]any {
	t.Helper()
	var all map[string]any
	err := json.Unmarshal([]byte(`{
		"name": "gpu-a", "address": "10.88.255.13", "provider_id": "process://gpu-a",
		"kubeconfig": "/c", "tls_cert": "/t.crt", "tls_key": "/t.key", "client_ca": "/ca.crt",
		"disk": "/d", "root": "/d/kubelet", "pod_logs": "/d/pod-logs", "cri_socket": "/run/cri.sock",
		"cpu": 32, "memory_bytes": 1024, "disk_bytes": 2048, "extended": {"nvidia.com/gpu": 4}, "gpus": [],
		"labels": {"a": "b"}, "taints": ["nvidia.com/gpu=present:NoSchedule"], "cgroup": null}`), &all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parsed(t *testing.T, all map[string]any) (*Spec, error) {
	t.Helper()
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return parseSpec(text)
}

func TestASpecReachesTheKubelet(t *testing.T) {
	spec, err := parsed(t, fields(t))
	if err != nil {
		t.Fatal(err)
	}
	server, err := server(spec, &kubeletconfig.KubeletConfiguration{})
	if err != nil {
		t.Fatal(err)
	}
	taint := v1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: v1.TaintEffectNoSchedule}
	if got := server.RegisterWithTaints; len(got) != 1 || got[0] != taint {
		t.Errorf("taints: %v", got)
	}
	if server.HostnameOverride != "gpu-a" || server.NodeIP != "10.88.255.13" || server.NodeLabels["a"] != "b" {
		t.Errorf("flags: %+v", server.KubeletFlags)
	}
	if server.ContainerRuntimeEndpoint != "unix:///run/cri.sock" || server.Authentication.X509.ClientCAFile != "/ca.crt" {
		t.Errorf("configuration: %+v", server.KubeletConfiguration)
	}
}

func TestAWrongSpecIsRefusedByName(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"node_labels":      func(all map[string]any) { all["node_labels"] = map[string]string{} },
		"client_ca":        func(all map[string]any) { delete(all, "client_ca") },
		"gpus":             func(all map[string]any) { delete(all, "gpus") },
		"paths":            func(all map[string]any) { all["gpus"] = []any{map[string]any{"id": "GPU-a", "paths": []any{}}} },
		"must be positive": func(all map[string]any) { all["cpu"] = 0 },
		"NoWhere":          func(all map[string]any) { all["taints"] = []string{"a=b:NoWhere"} },
		"without a taint":  func(all map[string]any) { all["taints"] = []string{"a=b:NoSchedule-"} },
	} {
		all := fields(t)
		change(all)
		if _, err := parsed(t, all); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
