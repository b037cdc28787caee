#!/bin/bash
# Build the disk of a Debian VM: this machine's own release, with its stock kernel. As root.
# usage: build.sh WORK OUTPUT VENV UML PACKAGE...
# WORK must be empty and take 6 GB; OUTPUT appears only when the build is complete. VENV is the virtual environment to
# copy, UML the program of the UML kernel, which is copied, too; empty: none. Every step says so on stdout. Exit code 4:
# Debian cannot be installed from here; another one is a fault of this program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 output=$2 venv=$3 uml=$4
shift 4
root=$work/root parts=$work/parts disk=$work/parts/disk.img
size_mib=8192
label=testbed
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin

step() { echo "STEP $SECONDS s: $*"; }

# The repositories of Debian that this machine is set up with; none known: mmdebstrap's own default.
sources() {
	# shellcheck disable=SC2016
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
		sort -u
}

# A kernel that can be a guest: what its first file system needs and nothing else, so that little is unpacked.
modules=(virtio_pci virtio_blk virtio_scsi virtio_net ahci sd_mod ext4 9p 9pnet_virtio)

system=(linux-image-amd64 systemd-sysv udev dbus kmod ifupdown isc-dhcp-client openssh-server sudo rsync zstd
	ca-certificates git grub-pc-bin grub-common procps python3 less)

install_debian() {
	local include
	include=$(IFS=,; echo "${system[*]},$*")
	sources >"$work/sources.list"
	[ -s "$work/sources.list" ] || rm "$work/sources.list"
	mkdir -p "$work/initramfs-tools/conf.d"
	echo MODULES=list >"$work/initramfs-tools/conf.d/testbed"
	printf '%s\n' "${modules[@]}" >"$work/initramfs-tools/modules"
	mmdebstrap --quiet --variant=apt --format=directory --mode=root --include="$include" \
		--aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' --dpkgopt=force-unsafe-io \
		--dpkgopt=force-confold \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--essential-hook="copy-in $work/initramfs-tools /etc" \
		"$suite" "$root" $([ ! -f "$work/sources.list" ] || echo "$work/sources.list") || exit 4
}

# The environment as `scripts/setup` made it here, without torch; it will stand in /vagrant.
copy_python() {
	mkdir -p "$root/opt/venv"
	tar -C "$venv" --exclude='*/site-packages/torch*' --exclude='*/site-packages/functorch' \
		--exclude='*/site-packages/nvidia*' --exclude='*/site-packages/triton*' -cf - . |
		tar -C "$root/opt/venv" --no-same-owner -xf -
	# in the first line, or in the second where the path is long or has blanks; none is no error
	{ grep -lIZF "$venv/bin/python" "$root"/opt/venv/bin/* || true; } |
		xargs -0r sed -i "1,2s:$venv/bin/python:/vagrant/.venv/bin/python:"
	[ -z "$uml" ] || install -D "$uml" "$root/var/cache/testbed/$(basename "$(dirname "$uml")")/linux"
}

configure() {
	echo testbed >"$root/etc/hostname"
	printf '127.0.0.1 localhost\n127.0.1.1 testbed\n' >"$root/etc/hosts"
	echo "LABEL=$label / ext4 errors=remount-ro 0 1" >"$root/etc/fstab"
	printf 'auto lo eth0\niface lo inet loopback\niface eth0 inet dhcp\n' >"$root/etc/network/interfaces"
	install -D -m 755 "$here/boot.sh" "$root/usr/local/sbin/testbed-vm"
	chroot "$root" useradd --create-home --shell /bin/bash vagrant
	install -D -m 440 /dev/stdin "$root/etc/sudoers.d/vagrant" <<<'vagrant ALL=(ALL) NOPASSWD: ALL'
	chroot "$root" ssh-keygen -q -t ed25519 -N '' -C testbed-box -f /home/vagrant/key
	install -d -m 700 "$root/home/vagrant/.ssh"
	mv "$root/home/vagrant/key.pub" "$root/home/vagrant/.ssh/authorized_keys"
	mv "$root/home/vagrant/key" "$parts/ssh_key"
	chroot "$root" chown -R vagrant: /home/vagrant
	echo 'UseDNS no' >"$root/etc/ssh/sshd_config.d/testbed.conf"
	rm -f "$root/etc/resolv.conf"
}

# GRUB by hand: its first sector, and its core in the gap before the partition. `boot.img` looks for it there.
make_disk() {
	local mib=$((1 << 20))
	chroot "$root" grub-mkimage -O i386-pc -o /boot/core.img -p "(hd0,msdos1)/boot/grub" \
		biosdisk part_msdos ext2 normal linux search search_label configfile serial terminal boot echo
	install -D -m 644 "$here/grub.cfg" "$root/boot/grub/grub.cfg"
	cp "$root/boot/core.img" "$root/usr/lib/grub/i386-pc/boot.img" "$work/"
	truncate -s ${size_mib}M "$disk"
	echo 'start=2048, type=83, bootable' | sfdisk --quiet --label dos "$disk"
	mke2fs -q -F -t ext4 -L $label -E offset=$mib,root_owner=0:0 -d "$root" "$disk" $((size_mib - 1))M
	dd if="$work/boot.img" of="$disk" bs=440 count=1 conv=notrunc status=none
	dd if="$work/core.img" of="$disk" bs=512 seek=1 conv=notrunc status=none
}

mkdir "$parts"
step "installing Debian $suite (mmdebstrap)"
install_debian "$@"
step "copying Python packages"
copy_python
step "configuring"
configure
cp -L "$root/vmlinuz" "$parts/vmlinuz"
cp -L "$root/initrd.img" "$parts/initrd"
basename "$(readlink "$root/vmlinuz")" | sed 's/^vmlinuz-//' >"$parts/release"
step "writing the disk"
make_disk
step "done: $(du -sh "$disk" | cut -f1) on disk, kernel $(cat "$parts/release")"
chmod 755 "$parts" && chmod 644 "$parts"/* && chmod 600 "$parts/ssh_key"
mkdir -p "$(dirname "$output")"
mv -T "$parts" "$output"
