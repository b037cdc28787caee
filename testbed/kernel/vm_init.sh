# The first program of a run in the VM. `vm.py` writes SITE, SITE_TARGET and the arguments above this text.
#
# Debian's initrd has mounted the disk, writable, with /proc, /sys, /dev and /run; what is written to the disk is
# lost. The run directory is the only place that reaches the host.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

power_off() {
	[ "${ready-}" ] || echo "vm: could not be set up"
	if [ "${mirror-}" ]; then
		kill "$mirror" || true
		# by itself it only appends; a shell speaks of one that was ended before it could listen
		wait "$mirror" 2>/dev/null || cp -a /run/testbed/run/journal/. /run/testbed/journal ||
			echo "vm: the journal is not complete"
		umount /run/testbed/journal || true
	fi
	sync
	umount -R /run/testbed/run || true
	echo "vm: off"
	echo o >/proc/sysrq-trigger
	sleep 60
}
trap power_off EXIT

# loose: nobody else writes there meanwhile
share() {
	mkdir -p "$2"
	mount -t 9p -o "trans=virtio,version=9p2000.L,msize=524288,cache=loose,$3" "$1" "$2"
}

mount --make-rprivate /
share project /opt/testbed ro
share run /run/testbed/run rw
mount --bind "$SITE" "/opt/testbed/$SITE_TARGET"
mkdir -p /dev/shm /run/netns
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
hostname testbed
ip link set lo up
modprobe -aq tcp_bbr tcp_dctcp # else nobody in a container may choose them
modprobe -q tcp_diag # else the kernel fetches it at the first look at sockets, when the clock must not leap
echo 200 >/proc/sys/vm/dirty_writeback_centisecs
echo 100 >/proc/sys/vm/dirty_expire_centisecs
ulimit -n 65536

# an emulated processor's clock leaps while everything waits for the disk, so as little as possible is read later
find /opt/testbed /usr/lib/python3* "$SITE" -name '*.pyc' -o -name '*.so' | grep -v -e /polars -e /mypy -e /ray/ |
	xargs -r cat >/dev/null

python="env -i PATH=$PATH HOME=/tmp LANG=C.UTF-8 TERM=dumb PYTHONPATH=/opt/testbed PYTHONHASHSEED=0
	PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 /opt/testbed/.venv/bin/python"
cd /opt/testbed

# Who writes the journal must not wait for the host, not even now and then: when all wait, the clock leaps. So it is
# written to memory, and copied by somebody who works when nobody else does.
if [ -d /run/testbed/run/journal ]; then
	mkdir /run/testbed/journal
	mount --bind /run/testbed/run/journal /run/testbed/journal
	mount -t tmpfs tmpfs /run/testbed/run/journal
	cp -a /run/testbed/journal/. /run/testbed/run/journal
	# shellcheck disable=SC2086
	chrt --idle 0 $python -m testbed.kernel.mirror /run/testbed/run/journal /run/testbed/journal </dev/null &
	mirror=$!
fi

ready=yes
status=0
# shellcheck disable=SC2086
$python "$@" /run/testbed/run </dev/null || status=$?
[ $status = 0 ] || echo "vm: python ended with status $status"
