package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func write(t *testing.T, directory, name, text string) {
	t.Helper()
	path := filepath.Join(directory, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func statLine(command, userTime, start string) string {
	return "1 (" + command + ") S 0 1 1 0 -1 4194560 1 1 1 1 " + userTime + " 2 3 4 20 0 1 0 " + start + " 5 6 7\n"
}

func TestABootIsTheStartOfProcess1(t *testing.T) {
	proc := t.TempDir()
	write(t, proc, "sys/kernel/random/boot_id", "abc\n")
	write(t, proc, "stat", "cpu 1 2 3\nbtime 1000\nprocesses 7\n")
	write(t, proc, "1/stat", statLine("python (x) y", "1", "250"))
	id, at, err := bootOf(proc)
	if err != nil || id != "abc-250" || !at.Equal(time.Unix(1002, 500_000_000)) {
		t.Errorf("%q %v %v", id, at, err)
	}
	write(t, proc, "1/stat", statLine("python", "1", "251")) // the machine was booted again
	if again, _, _ := bootOf(proc); again == id {
		t.Error("a reboot has the same id")
	}
}

func TestThisComputerHasABoot(t *testing.T) {
	id, at, err := bootOf("/proc")
	if err != nil || id == "" || at.After(time.Now().Add(time.Second)) {
		t.Errorf("%q %v %v", id, at, err)
	}
	if again, _, _ := bootOf("/proc"); again != id {
		t.Errorf("the id changed from %s to %s without a reboot", id, again)
	}
}

func TestAProcWithoutWhatIsNeeded(t *testing.T) {
	proc := t.TempDir()
	write(t, proc, "sys/kernel/random/boot_id", "abc\n")
	write(t, proc, "1/stat", "nonsense")
	if _, _, err := bootOf(proc); err == nil {
		t.Error("no error")
	}
	write(t, proc, "1/stat", statLine("init", "1", "250"))
	write(t, proc, "stat", "cpu 1 2 3\n")
	if _, _, err := bootOf(proc); err == nil {
		t.Error("no error")
	}
}
