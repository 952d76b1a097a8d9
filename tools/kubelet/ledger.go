package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
)

// gpuLedger remembers which Pod has which GPUs. A Pod gets all that its containers will ever need with its first
// container, and keeps them until it has ended; the kubelet admits no Pod for which too few are free.
//
// The ledger is a file too, so that a restarted kubelet gives nobody what a running Pod has.
type gpuLedger struct {
	path string
	gpus []gpu
	real bool

	mutex sync.Mutex
	taken shares
}

func newGPULedger(path string, count int, real []gpu) (*gpuLedger, error) {
	gpus, err := gpusOf(count, real)
	if err != nil {
		return nil, err
	}
	ledger := &gpuLedger{path: path, gpus: gpus, real: len(real) > 0, taken: shares{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ledger, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &ledger.taken)
	}
	if err == nil {
		err = ledger.taken.check(ledger.ids())
	}
	if err != nil {
		return nil, fmt.Errorf("which Pod has which GPU cannot be read: %s: %w", path, err)
	}
	return ledger, nil
}

func (l *gpuLedger) ids() (ids []string) {
	for _, one := range l.gpus {
		ids = append(ids, one.ID)
	}
	return ids
}

// keepOnly frees the GPUs of all Pods but these.
func (l *gpuLedger) keepOnly(active func(pod string) bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.taken = l.taken.only(active)
}

// idsFor returns the ids of a container's GPUs; the first container of a Pod takes them for the whole Pod.
func (l *gpuLedger) idsFor(of wish, container string) ([]string, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	after, err := assign(l.ids(), l.taken, of)
	if err != nil {
		return nil, err
	}
	if l.taken[of.pod] == nil {
		if err := l.write(after); err != nil {
			return nil, err
		}
	}
	l.taken = after
	return of.share(after[of.pod], container)
}

// files are the device files of these GPUs, each once.
func (l *gpuLedger) files(ids []string) (files []string) {
	for _, one := range l.gpus {
		for _, file := range one.Files {
			if slices.Contains(ids, one.ID) && !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files
}

func (l *gpuLedger) write(taken shares) error {
	text, err := json.Marshal(taken)
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(l.path+".new", l.path)
}
