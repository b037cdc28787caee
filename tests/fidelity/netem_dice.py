"""netem's loss models, packet by packet, from the seed: what the kernel must have lost.

The generator is the kernel's `prandom_u32_state` (lib/random32.c, lfsr113 of L'Ecuyer), seeded as
`prandom_seed_state` does (include/linux/prandom.h); the models are `loss_gilb_ell` and `loss_4state`
(net/sched/sch_netem.c).
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.shaping.attributes import U32_MAX, probability

_SMALLEST = (2, 8, 16, 128)
_STEPS = ((6, 13, 0xFFFFFFFE, 18), (2, 27, 0xFFFFFFF8, 2), (13, 21, 0xFFFFFFF0, 7), (3, 12, 0xFFFFFF80, 13))


def _generator(seed: int) -> Callable[[], int]:
    """32 random bits at a time."""
    mixed = (seed >> 32 ^ seed << 10 ^ seed) & U32_MAX
    state = [mixed + least if mixed < least else mixed for least in _SMALLEST]

    def draw() -> int:
        drawn = 0
        for number, (a, b, mask, d) in enumerate(_STEPS):
            one = state[number]
            one = (one & mask) << d & U32_MAX ^ ((one << a & U32_MAX) ^ one) >> b
            state[number] = one
            drawn ^= one
        return drawn

    return draw


def gilbert_elliott(seed: int, packets: int, *, p: float, r: float) -> list[int]:
    """Numbers of the packets lost, when the bad state loses all and the good one none."""
    draw, bad, lost = _generator(seed), False, []
    to_bad, to_good = probability(p), probability(r)
    for number in range(packets):
        if bad:
            lost.append(number)
        change = draw() < (to_good if bad else to_bad)
        draw()  # the state's own dice, here certain
        bad = bad != change
    return lost


def four_state(
    seed: int, packets: int, *, p13: float, p31: float, p32: float, p23: float, p14: float
) -> list[int]:
    """Numbers of the packets lost: those that lead to states 3 and 4."""
    draw, state, lost = _generator(seed), 1, []
    ways = {  # state: (probability, next state), tried one after the other
        1: ((probability(p14), 4), (probability(p13), 3)),
        2: ((probability(p23), 3),),
        3: ((probability(p32), 2), (probability(p31), 1)),
        4: ((U32_MAX + 1, 1),),
    }
    for number in range(packets):
        rest = draw()
        for chance, following in ways[state]:
            if rest < chance:
                state = following
                break
            rest -= chance
        if state in (3, 4):
            lost.append(number)
    return lost
