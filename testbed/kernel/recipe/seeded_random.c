// SPDX-License-Identifier: GPL-2.0
/*
 * Randomness from a seed. UML asks its host for random numbers in one place, getrandom(); the build
 * sends those calls here. Booted with rng-seed=<n>, all of the guest's randomness follows from <n>;
 * booted without, the host's getrandom() answers as before.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <init.h>

static uint64_t state;
static int seeded;

static int __init read_seed(char *value, int *add)
{
	char *end;

	*add = 0;
	errno = 0;
	state = strtoull(value, &end, 10);
	if (errno || end == value || *end) {
		fprintf(stderr, "rng-seed=%s is not a number below 2^64\n", value);
		exit(1);
	}
	seeded = 1;
	return 0;
}
__uml_setup("rng-seed=", read_seed,
"rng-seed=<n>\n"
"    Derive all randomness from the decimal number <n>: two boots with the\n"
"    same <n> draw the same numbers.\n\n");

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014 */
static uint64_t draw(void)
{
	uint64_t z = state += 0x9E3779B97F4A7C15ULL;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}

ssize_t seeded_getrandom(void *buffer, size_t size, unsigned int flags);

ssize_t seeded_getrandom(void *buffer, size_t size, unsigned int flags)
{
	size_t done, step;

	if (!seeded)
		return getrandom(buffer, size, flags);
	for (done = 0; done < size; done += step) {
		uint64_t word = draw();

		step = size - done < sizeof(word) ? size - done : sizeof(word);
		memcpy((char *)buffer + done, &word, step);
	}
	return (ssize_t)size;
}
