/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What clang is told, so that the kernel's verifier can follow it. */
#ifndef WEIR_COMPILER_H
#define WEIR_COMPILER_H

#define weir_barrier() asm volatile("" ::: "memory")

/*
 * Keeps clang from knowing a value better than the verifier does. Lengths and offsets are 64 bits wide
 * for the same reason: of a 32-bit one clang compares a shifted copy, and the verifier's bound stays
 * with the copy.
 */
#define weir_opaque(value) asm volatile("" : "+r"(value))

#endif
