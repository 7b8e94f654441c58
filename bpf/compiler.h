/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Directions for clang, without which the kernel's verifier rejects the program. */
#ifndef WEIR_COMPILER_H
#define WEIR_COMPILER_H

#define weir_barrier() asm volatile("" ::: "memory")

/*
 * Hides from clang what it knows about a value and the verifier does not. Lengths and offsets are 64 bits wide
 * for the same reason: clang compares a shifted copy of a 32-bit value, and the verifier then knows bounds of the
 * copy only.
 */
#define weir_opaque(value) asm volatile("" : "+r"(value))

#endif
