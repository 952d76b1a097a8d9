package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func open(t *testing.T, path string, real ...gpu) *gpuLedger {
	t.Helper()
	ledger, err := newGPULedger(path, len(real), real)
	if err != nil {
		t.Fatal(err)
	}
	return ledger
}

func realOnes(count int) (made []gpu) {
	for i, id := range idsOf(count) {
		made = append(made, gpu{id, []string{fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl"}})
	}
	return made
}

// Two Pods of two containers begin and end in each of the orders that there are, and between any two steps the kubelet
// restarts and has nothing but the file: what a Pod had it has still, and what has ended is free.
func TestARestartAtAnyMomentChangesNothing(t *testing.T) {
	paths := 0
	for _, shapes := range [][2][]int{{{1, 1}, {1}}, {{1}, {2}}, {{2}, {2}}, {{0, 1}, {1, 1}}} {
		pods := []wish{podOf("a", shapes[0]...), podOf("b", shapes[1]...)}
		var orders func(begun [2]int, path []int)
		orders = func(begun [2]int, path []int) {
			over := true
			for i, pod := range pods {
				if begun[i] <= len(pod.containers) { // the step after the last container is the end
					over = false
					next := begun
					next[i]++
					orders(next, append(slices.Clone(path), i))
				}
			}
			if over {
				paths++
				follow(t, pods, path)
			}
		}
		orders([2]int{}, nil)
	}
	if paths != 10+6+6+20 {
		t.Errorf("%d orders", paths)
	}
}

func follow(t *testing.T, pods []wish, path []int) {
	t.Helper()
	file, begun, had, over := filepath.Join(t.TempDir(), "gpus.json"), map[int]int{}, map[string][]string{}, map[string]bool{}
	for _, i := range path {
		pod := pods[i]
		ledger := open(t, file, realOnes(2)...)
		ledger.keepOnly(func(uid string) bool { return !over[uid] })
		if begun[i] == len(pod.containers) {
			over[pod.pod] = true
			delete(had, pod.pod)
			continue
		}
		container := pod.containers[begun[i]]
		begun[i]++
		if container.gpus == 0 {
			continue
		}
		free := 2
		for _, ids := range had {
			free -= len(ids)
		}
		_, err := ledger.idsFor(pod, container.name)
		if (err != nil) != (had[pod.pod] == nil && pod.total > free) {
			t.Fatalf("%v %v: %d are free, %v", pods, path, free, err)
		}
		if err != nil {
			continue
		}
		ids := ledger.taken[pod.pod]
		if had[pod.pod] != nil && !slices.Equal(ids, had[pod.pod]) {
			t.Fatalf("%v %v: %s had %v, and has %v", pods, path, pod.pod, had[pod.pod], ids)
		}
		had[pod.pod] = ids
		for uid, others := range had {
			if uid != pod.pod && slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(others, id) }) {
				t.Fatalf("%v %v: two Pods have %v and %v", pods, path, ids, others)
			}
		}
	}
}

func TestALedgerThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": [`:                           "unexpected end of JSON input",
		`{"a": ["GPU-a"], "b": ["GPU-a"]}`:  "given twice",
		`{"a": ["GPU-a"], "b": ["GPU-zz"]}`: "not of this machine",
		`{"a": ["0"]}`:                      "not of this machine", // of a time when this machine's were fake
	} {
		file := filepath.Join(t.TempDir(), "gpus.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := newGPULedger(file, 2, realOnes(2))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDeviceFilesAreThoseOfTheGPUsThatAreGiven(t *testing.T) {
	ledger := open(t, filepath.Join(t.TempDir(), "gpus.json"), realOnes(3)...)
	for _, one := range []struct{ ids, files []string }{
		{nil, nil},
		{[]string{"GPU-b"}, []string{"/dev/nvidia1", "/dev/nvidiactl"}},
		{[]string{"GPU-c", "GPU-a"}, []string{"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia2"}},
	} {
		if got := ledger.files(one.ids); !slices.Equal(got, one.files) {
			t.Errorf("%v: %v", one.ids, got)
		}
	}
	if fake := (&gpuLedger{gpus: []gpu{{ID: "0"}}}).files([]string{"0"}); fake != nil {
		t.Errorf("a fake GPU has files: %v", fake)
	}
}
