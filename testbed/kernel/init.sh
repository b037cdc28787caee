# The guest's first process. `uml.py` writes RUN_DIR, IMAGE, SITE, SITE_TARGET and the arguments above this text.
#
# The kernel has mounted the host's root, read-only. This script puts a RAM overlay on it, makes the run
# directory the only place that reaches the host, runs the payload and switches the power off.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

power_off() {
	[ "${ready-}" ] || echo "guest: could not be set up"
	echo o >/proc/sysrq-trigger
	sleep 60
}
trap power_off EXIT

# each look at a path costs virtual time, so `mount` looks at none that may differ between machines: not at those
# that it is given (-c), not for /sbin/mount.* (-i), not for /run/mount (-n)
mount() { command mount -cin "$@"; }

mount -t proc proc /proc
stty -opost

# /sys serves as the place to build the new root in: it exists everywhere and nobody keeps files there
mount -t tmpfs tmpfs /sys
root=/sys/root
mkdir /sys/upper /sys/work /sys/host $root
mount -t overlay overlay -o lowerdir=/,upperdir=/sys/upper,workdir=/sys/work $root
# a second one, writable; noatime, because whether a file was read before must not matter
mount -t hostfs -o noatime none /sys/host

for directory in /tmp /run /dev /proc; do mkdir -p $root$directory; done
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=755 tmpfs $root/run
mkdir -p $root/run/netns $root/run/testbed/run $root/opt/testbed
cd "/sys/host$RUN_DIR" && mount --bind . $root/run/testbed/run
cd "$IMAGE" && mount --bind . $root/opt/testbed
cd "$SITE" && mount --bind . $root/opt/testbed/$SITE_TARGET
mount -t devtmpfs devtmpfs $root/dev
mkdir -p $root/dev/pts $root/dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts $root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
ln -s /proc/self/fd $root/dev/fd
mount -t proc proc $root/proc

# `crun` changes the root once more, which the kernel allows only on a private mount
cd $root
pivot_root . .
umount -l .
cd /
mount --make-rprivate /
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
hostname testbed
ip link set lo up
ulimit -n 65536

# an idle week costs a second of wall time: a guest in which everybody waits for somebody gets there at once
(
	sleep 604800
	echo "guest: waits for ever"
	echo o >/proc/sysrq-trigger
) &

# the kernel changes over to high-resolution timers at its first ticks; before that a sleep takes 10 ms or more
sleep 0.1

cd /opt/testbed
ready=yes
status=0
env -i PATH=$PATH HOME=/tmp LANG=C.UTF-8 TERM=dumb PYTHONPATH=/opt/testbed PYTHONHASHSEED=0 \
	PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 \
	/opt/testbed/.venv/bin/python "$@" /run/testbed/run </dev/null || status=$?
[ $status = 0 ] || echo "guest: python ended with status $status"
sync
