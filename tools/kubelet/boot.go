package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const ticksPerSecond = 100 // USER_HZ: the unit of times in /proc, the same on every architecture that Go runs on

// bootOf says when the machine was booted, and gives that boot an id.
//
// A machine is a PID namespace, and its init is PID 1 there: a machine boots when its PID 1 starts. So a restart of
// the kubelet is no reboot (the Kubernetes node would get an event "Rebooted"), and a new init always is one.
func bootOf(proc string) (id string, at time.Time, err error) {
	host, err := os.ReadFile(proc + "/sys/kernel/random/boot_id")
	if err != nil {
		return "", at, err
	}
	stat, err := os.ReadFile(proc + "/1/stat")
	if err != nil {
		return "", at, err
	}
	fields, err := statFields(string(stat))
	if err != nil {
		return "", at, err
	}
	started, err := strconv.ParseInt(fields[startTime], 10, 64) // after the host's boot
	if err != nil {
		return "", at, err
	}
	kernel, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return "", at, err
	}
	_, rest, _ := strings.Cut(string(kernel), "\nbtime ")
	seconds, err := strconv.ParseInt(strings.Fields(rest + " ?")[0], 10, 64)
	if err != nil {
		return "", at, fmt.Errorf("%s/stat does not say when this computer was booted: %w", proc, err)
	}
	at = time.Unix(seconds, 0).Add(time.Duration(started) * time.Second / ticksPerSecond)
	return fmt.Sprintf("%s-%d", strings.TrimSpace(string(host)), started), at, nil
}

// Indexes into what statFields returns; proc_pid_stat(5) counts from the process id, which is its number 1.
const (
	userTime           = 14 - 3
	systemTime         = 15 - 3
	childrenUserTime   = 16 - 3
	childrenSystemTime = 17 - 3
	startTime          = 22 - 3
)

// statFields splits /proc/PID/stat after the command, which may itself hold spaces and brackets.
func statFields(stat string) ([]string, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= startTime {
		return nil, fmt.Errorf("this is no line of /proc/PID/stat: %q", stat)
	}
	return fields, nil
}
