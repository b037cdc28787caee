#!/bin/sh
# Build a User-Mode Linux kernel with virtual time and seeded randomness from a distribution's kernel source.
# usage: build.sh TARBALL WORKDIR OUTPUT
# WORKDIR must be empty and take 700 MB; OUTPUT appears only when the build is complete.
# Every step says so on stdout, as does make, so that a step which hangs can be named.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tarball=$1 work=$2 output=$3
src=$work/src obj=$work/obj
config=$obj/.config

# two builds on two machines give the same kernel, and so the same random numbers (it stirs in its own name)
export KBUILD_BUILD_TIMESTAMP='2025-01-01 00:00:00 UTC' KBUILD_BUILD_USER=testbed KBUILD_BUILD_HOST=testbed
export KBUILD_BUILD_VERSION=1 LC_ALL=C XZ_DEFAULTS=-T0

step() { echo "STEP $*"; }

fail() {
	echo "ERROR $*" >&2
	exit 1
}

# A file, what must stand in it, and what shall.
exchange() {
	grep -q -e "$2" "$1" || fail "$1 is not as expected: no $2"
	sed -i "s/$2/$3/" "$1"
}

build() { make --no-print-directory -C "$src" ARCH=um O="$obj" "$@"; }

# Everything but the sources of what a machine without hardware cannot use; their Kconfig and Makefiles stay.
unpack() {
	mkdir -p "$src" "$obj"
	set -- --exclude="*/Documentation/*/*" --exclude="*/tools/testing/*" --exclude="*/tools/perf/*"
	for tree in alpha arc arm arm64 csky hexagon loongarch m68k microblaze mips nios2 openrisc parisc powerpc \
		riscv s390 sh sparc xtensa; do
		set -- "$@" --exclude="*/arch/$tree/*.[chS]" --exclude="*/arch/$tree/boot/dts/*"
	done
	for tree in sound drivers/accel drivers/ata drivers/bluetooth drivers/clk drivers/comedi drivers/crypto \
		drivers/firmware drivers/gpu drivers/hid drivers/hwmon drivers/i2c drivers/iio drivers/infiniband \
		drivers/input drivers/media drivers/mfd drivers/misc drivers/mmc drivers/mtd drivers/net/can \
		drivers/net/dsa drivers/net/ethernet drivers/net/phy drivers/net/usb drivers/net/wireless \
		drivers/nvme drivers/pci drivers/perf drivers/phy drivers/pinctrl drivers/platform drivers/power \
		drivers/regulator drivers/scsi drivers/soc drivers/staging drivers/thermal drivers/usb drivers/video \
		fs/bcachefs fs/btrfs fs/ext4 fs/f2fs fs/nfs fs/nfsd fs/ntfs3 fs/ocfs2 fs/smb fs/xfs; do
		set -- "$@" --exclude="*/$tree/*.[chS]"
	done
	tar -xf "$tarball" -C "$src" --strip-components=1 "$@"
}

# seeded_random.c serves every request for the host's randomness; a guest's processes die with the guest.
patch_sources() {
	um=$src/arch/um/os-Linux
	cp "$here/seeded_random.c" "$um/"
	sed -i 's/^USER_OBJS := \$(user-objs-y) /obj-y += seeded_random.o\nCFLAGS_util.o += -Dgetrandom=seeded_getrandom\nUSER_OBJS := $(user-objs-y) seeded_random.o /' "$um/Makefile"
	grep -q '^USER_OBJS.* seeded_random.o ' "$um/Makefile" || fail "arch/um/os-Linux/Makefile is not as expected"
	for file in "$um/start_up.c" "$um/skas/process.c"; do
		sed -i 's/(void \*) PTRACE_O_TRACESYSGOOD/(void *) (PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)/' "$file"
		grep -q PTRACE_O_EXITKILL "$file" || fail "$file is not as expected"
	done
	# moves on by a wrong number of pages where it sets more than two at a time
	exchange "$src/arch/um/include/asm/pgtable.h" '(nr << PFN_PTE_SHIFT)' '(1UL << PFN_PTE_SHIFT)'
	# code and data lie below 2 GiB, so calls need no register; small copies need no call
	exchange "$src/arch/um/Makefile" ' -mcmodel=large' ''
	exchange "$src/arch/x86/Makefile.um" '-fno-builtin -m64' '-m64'
	# hundreds of directories in which nothing would be compiled
	sed -i -E '/\+= (clk|firmware|gpu|iommu|soc|video)\/$/d; s: media/$::' "$src/drivers/Makefile"
	for change in "$here"/*.patch; do
		patch -p1 -d "$src" <"$change" || fail "$change does not fit this kernel source"
	done
}

symbols() { grep -v -e '^#' -e '^$' "$here/kernel.symbols"; }

configure() {
	build -s tinyconfig
	set --
	for symbol in $(symbols); do
		symbol=${symbol#\?}
		case $symbol in
		-*) set -- "$@" -d "${symbol#-}" ;;
		*=*) set -- "$@" --set-val "${symbol%=*}" "${symbol#*=}" ;;
		*) set -- "$@" -e "$symbol" ;;
		esac
	done
	"$src/scripts/config" --file "$config" "$@"
	build -s olddefconfig
}

verify() {
	wrong=
	for symbol in $(symbols); do
		case $symbol in
		\?*) ;;
		-*) ! grep -q "^CONFIG_${symbol#-}=" "$config" || wrong="$wrong $symbol" ;;
		*=*) grep -qx "CONFIG_$symbol" "$config" || wrong="$wrong $symbol" ;;
		*) grep -qx "CONFIG_$symbol=y" "$config" || wrong="$wrong $symbol" ;;
		esac
	done
	[ -z "$wrong" ] || fail "the kernel's configuration did not take:$wrong"
}

step "unpacking $tarball"
unpack
step "patching"
patch_sources
step "configuring"
configure
verify
step "compiling with $(nproc) processes"
build -j"$(nproc)" linux
step "done"
strip -o "$output.part" "$obj/linux"
mv "$output.part" "$output"
